// `ebb export`: a model as an ONNX file.
#include "ebb/onnx/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/checkpoint_folder.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/pruning.h"
#include "cli/resume.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/workloads/workload.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

class Export : public Verb {
 public:
  Export()
      : Verb("export", "Write a model as an ONNX file",
             "ebb export --model gpt2/ --onnx gpt2.onnx --with-cache") {}

 protected:
  void configure(CLI::App& app) override {
    add_option(app, "--model", model_, "A Hugging Face folder").existing_folder();
    add_option(app, "--checkpoint", checkpoint_,
               "Instead of --model: export the newest checkpoint in this folder of ebb train, or a "
               "checkpoint file such as best.safetensors")
        .existing_path()
        .excludes("--model");
    add_option(app, "--onnx", file_, "The file to write").required();
    add_option(app, "--opset", options_.opset, "Version of ONNX's operators")
        .between(onnx::first_opset, onnx::last_opset)
        .show_default();
    add_flag(app, "--with-cache", with_cache_,
             "Add inputs and outputs for keys and values of earlier tokens, for generation");
    add_flag(app, "--external-data", external_data_,
             "Write the weights to FILE.data; default: only for models of 2 GiB and more");
    add_option(app, "--compute", compute_,
               "Dtype of products, inputs and outputs: that of the weights, or float32")
        .one_of({"weights", "float32"})
        .show_default();
    add_bits(app);
  }

  void add_bits(CLI::App& app) {
    add_option(app, "--bits", bits_,
               "Store weights of linear layers as int8 or int4 with a scale per block, decoded by "
               "DequantizeLinear; the default of --opset is then 21")
        .one_of({"int8", "int4"});
  }

  int run() override {
    if (!bits_.empty()) {
      options_.bits = low_bits_by_name(bits_);
      if (app().get_option("--opset")->count() == 0) options_.opset = onnx::first_quantised_opset;
    }
    if (model_.empty() == checkpoint_.empty())
      throw UsageError("export needs a model: --model DIR or --checkpoint DIR");
    if (!model_.empty())
      refuse_over_input("--onnx", file_, "--model", model_);
    else
      for (const fs::path& read : {checkpoint_, checkpoint_.parent_path()})
        refuse_over_input("--onnx", file_, "--checkpoint", read);
    if (with_cache_) options_.cache = onnx::Cache::yes;
    if (external_data_) options_.external_data = onnx::ExternalData::yes;
    if (compute_ == "float32") options_.compute = onnx::Compute::in_float32;
    const onnx::ExportSummary summary =
        model_.empty() ? export_saved() : onnx::export_folder(model_, file_, options_);
    if (json())
      std::cout << json_text(to_json(summary), 2) << "\n";
    else
      print(summary);
    return success;
  }

 private:
  onnx::ExportSummary export_saved() const {
    std::error_code error;
    const bool folder = std::filesystem::is_directory(checkpoint_, error);
    const SavedRun saved =
        read_run(folder ? CheckpointFolder(checkpoint_, 1).to_resume() : checkpoint_);
    const std::string& name = saved.spec.task.common.name;
    if (workloads::is_multilevel(name))
      throw FileError(fmt::format(
          "{}: the run's workload, {}, has several models, but ebb export needs a run with one",
          saved.file.string(), name));
    // The model is made for its names and shapes; it gets no bytes.
    const auto task = workloads::make_workload(saved.spec.task.common);
    shrink_as_saved(saved, *task);
    return onnx::export_checkpoint(task->model(), saved.file, file_, options_);
  }

  nlohmann::ordered_json to_json(const onnx::ExportSummary& s) const {
    const auto ports = [](const std::vector<onnx::ExportedPort>& list) {
      nlohmann::ordered_json result = nlohmann::ordered_json::array();
      for (const onnx::ExportedPort& port : list)
        result.push_back({{"name", port.name}, {"dtype", name_of(port)}, {"axes", port.axes}});
      return result;
    };
    nlohmann::ordered_json result{{"file", file_.string()},
                                  {"model", s.family},
                                  {"opset", s.opset},
                                  {"ir_version", s.ir_version},
                                  {"weights", ebb::name(s.weights)},
                                  {"compute", ebb::name(s.compute)},
                                  {"parameters", s.parameters},
                                  {"quantised", s.quantised},
                                  {"weight_bytes", s.weight_bytes.count},
                                  {"file_bytes", s.model_bytes.count},
                                  {"inputs", ports(s.inputs)},
                                  {"outputs", ports(s.outputs)},
                                  {"operators", s.operators}};
    if (s.external_file) {
      result["external_file"] = s.external_file->string();
      result["external_bytes"] = s.external_bytes.count;
    }
    return result;
  }

  static std::string_view name_of(const onnx::ExportedPort& port) { return ebb::name(port.dtype); }

  void print(const onnx::ExportSummary& s) const {
    fmt::print("{}: {} with {} weights, {} parameters, opset {}, {}\n", file_.string(), s.family,
               ebb::name(s.weights), s.parameters, s.opset, to_string(s.model_bytes));
    if (s.external_file)
      fmt::print("{}: weights, {}\n", s.external_file->string(), to_string(s.external_bytes));
    const auto ports = [](const char* kind, const std::vector<onnx::ExportedPort>& list) {
      for (const onnx::ExportedPort& port : list)
        fmt::print("{:<7} {} {} ({})\n", kind, port.name, name_of(port),
                   fmt::join(port.axes, ", "));
    };
    ports("input", s.inputs);
    ports("output", s.outputs);
  }

  fs::path model_, checkpoint_, file_;
  std::string compute_ = "weights", bits_;
  onnx::ExportOptions options_;
  bool with_cache_ = false, external_data_ = false;
};

}  // namespace

std::unique_ptr<Verb> export_verb() { return std::make_unique<Export>(); }

}  // namespace ebb::cli
