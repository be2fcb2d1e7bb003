// Ready-made training tasks: a model, data and a loss under one name, with the sizes as options.
// The command line and the studies are built on them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/data/dataset.h"
#include "ebb/data/loader.h"
#include "ebb/image_layout.h"
#include "ebb/nn/module.h"
#include "ebb/optim/optimizer.h"

namespace ebb::prune {
struct Structure;
struct Removal;
enum class Values : bool;
}  // namespace ebb::prune

namespace ebb::workloads {

// The name of the workload that Options::model makes.
inline constexpr const char* folder_workload = "model";

// The settings of a workload; one without a value takes the workload's default. A setting that the
// workload does not use is an error (settings.h).
struct Options {
  std::string name = "lm";
  std::optional<std::int64_t> layers, width, hidden, heads, key_value_heads, vocabulary, sequence,
      classes, depth, batch;
  std::optional<double> dropout;
  // How files are read if nothing in them says it. All have defaults (docs/training.md).
  std::optional<std::string> tokens;        // of text: bytes, words; of .bin files: uint16, int32
  std::optional<std::int64_t> labels_from;  // the number of the first class in a file: 0 or 1
  std::optional<std::int64_t> image_size;   // pixels of a side, that PNG and JPEG are scaled to
  std::optional<std::filesystem::path>
      data;  // a folder or file in the real format; without one, data is generated
  // A Hugging Face folder whose model is trained further; `name` is then folder_workload, `data` is
  // text for the model, and sizes are the folder's.
  std::optional<std::filesystem::path> model;
  bool pack = false;  // several short texts in one sequence
  // Trains adapters instead of the weights (ebb/nn/adapt.h). This is their rank; by default alpha
  // is twice the rank, there is no dropout, and the layers are PEFT's usual ones.
  std::optional<std::int64_t> lora;
  std::optional<double> lora_alpha, lora_dropout;
  std::vector<std::string> lora_modules;
  std::optional<std::filesystem::path> adapter;  // instead: a PEFT folder to continue from
  std::optional<std::string> base;               // the form of frozen weights: int8, int4, nf4, 2:4
  bool merge = false;                            // when saving: adapters are added to the weights
  Device device;
  DType dtype = f32;
  std::uint64_t seed = 0;
  // The layout of images inside convolutional models; channels-first by default.
  std::optional<ImageLayout> layout;
  ImageLayout image_layout() const { return layout.value_or(ImageLayout::channels_first); }
  bool fused_loss = true;  // false: if there is a choice, the loss is computed from all logits
};

// The best that any model can do on generated data.
struct Limit {
  enum class Kind : bool { loss, accuracy } kind = Kind::loss;
  double value = 0.0;
};

// A part of the data.
struct DataPart {
  std::string source;      // "input.txt, tokens 0 to 90000", "generated Markov text"
  std::int64_t items = 0;  // windows, images, texts
  std::optional<std::int64_t> tokens = {};  // of running text
};
std::string to_string(const DataPart& part);  // "703 items (90000 tokens) of input.txt, ..."

class Workload {
 public:
  virtual ~Workload() = default;

  virtual nn::ModuleBase& model() = 0;
  virtual Tensor loss(const Batch& batch) = 0;
  // The accuracy, for classifiers; otherwise empty.
  virtual Tensor accuracy(const Batch& batch) { return (void)batch, Tensor{}; }
  virtual optim::Optimizer optimizer() const = 0;
  // Loads the weights of a model that comes from a folder. Until then the model has only shapes,
  // which is all that planning needs.
  virtual void load() {}
  // Writes the model as a Hugging Face folder; false if there is no such form of it.
  virtual bool save(const std::filesystem::path& folder) const { return (void)folder, false; }
  // Throws if what `save` would write could not be read again, so that this is known before
  // training.
  virtual void check_save() const {}

  // Replaces the model by one without the removed parts (ebb/prune/models.h). An error if the
  // family cannot lose parts.
  virtual void shrink(const prune::Structure& structure, const prune::Removal& removal,
                      prune::Values values);
  // Why transformers cannot load what `save` writes; empty if it can, or if nothing is written.
  virtual std::optional<std::string> refused_by_transformers() const { return {}; }

  // The two parts have no item in common.
  data::DatasetPtr train, test;
  DataPart train_part, test_part;
  std::int64_t batch_size = 1;
  Options settings;  // as used: defaults filled in, unused settings left empty
  std::optional<Limit> limit;
  bool saves = false;       // whether `save` has a form to write
  bool fuses_loss = false;  // whether Options::fused_loss makes a difference
  // TrainOptions::weight: the number of targets, if parts of a batch may differ in it.
  std::function<Tensor(const Batch&)> weight = {};
  // The data's vocabulary as a tokenizer.json; empty where the data has none of its own. It is
  // saved beside the model, so that ids can be turned back into text.
  std::string tokenizer_json;
};

// Data that is too small for one batch, or for something to be held out for testing, is an error.
std::unique_ptr<Workload> make_workload(const Options& options);
std::vector<std::string> workload_names();

// How training reads its data: whole batches in random order. For a GPU several threads prepare
// batches, because the GPU may finish a step before one thread has made the next batch.
data::LoaderOptions training_loader(std::int64_t batch, std::uint64_t seed, Device device);

}  // namespace ebb::workloads
