// Adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors, whose
// tensors are named base_model.model.PATH.lora_A.weight and .lora_B.weight, with the paths that
// transformers gives the layers.
#pragma once

#include <filesystem>
#include <string>

#include "ebb/nn/module.h"

namespace ebb::io {

// Freezes the model, adds adapters to the linear layers that the folder names, and loads their
// values. A model that already has adapters is an error. The folder is checked first: nothing is
// changed if a field or a tensor is not supported or fits no layer.
void load_adapter(const std::filesystem::path& folder, nn::ModuleBase& model);

// Throws if a folder of adapters cannot hold everything that the model's adapters need: the format
// has no place for one of the layers, or the model has other parameters that started from random
// values and would be lost.
void check_adapters(const nn::ModuleBase& model);

// Writes the model's adapters. All must have the same rank, alpha and dropout. `base` names the
// model they belong to: a folder, or a name of the Hugging Face hub.
void save_adapter(const nn::ModuleBase& model, const std::filesystem::path& folder,
                  const std::string& base);

}  // namespace ebb::io
