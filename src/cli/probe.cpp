// `ebb probe`: measures the rates of this machine that the planner uses.
#include "ebb/probe.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/did_you_mean.h"
#include "cli/options.h"
#include "cli/planning.h"
#include "cli/verb.h"
#include "core/backend.h"
#include "core/disk_rates.h"
#include "core/json.h"
#include "ebb/io/device_file.h"

namespace ebb::cli {
namespace {

class Probe : public Verb {
 public:
  Probe()
      : Verb("probe", "Measure this machine and describe it in a file for the planner",
             "ebb probe --save this_machine.json") {}

 protected:
  void configure(CLI::App& app) override {
    add_option(app, "--device", device_, "cpu, cuda or cuda:N")
        .check([](const std::string& text) -> std::string {
          if (named_device(text)) return {};
          return fmt::format("\"{}\" is neither cpu nor cuda{}", text,
                             did_you_mean(text, {"cpu", "cuda"}));
        })
        .show_default();
    add_option(app, "--save", save_,
               "Write the description to this file, for --device, and a GPU's tuning beside it")
        .type_name("FILE");
    add_option(
        app, "--offload-folder", folder_,
        "Also measure how fast this folder's disk is written and read; --save does not store it")
        .type_name("DIR")
        .existing_folder();
  }

  int run() override {
    const Device device = *named_device(device_);
    const Rates rates = measure_rates(device);
    std::optional<DiskRates> disk;
    if (folder_) disk = measure_disk(*folder_);
    if (save_) save(rates, device);
    if (json()) {
      nlohmann::ordered_json all = parse_ordered_json(io::describe_device(rates));
      if (disk)
        all["disk"] = {{"folder", folder_->string()},
                       {"read_bytes_per_second", disk->read},
                       {"write_bytes_per_second", disk->write},
                       {"each_of_both_bytes_per_second", disk->each_of_both},
                       {"method", disk->method},
                       {"direct", disk->direct}};
      fmt::print("{}\n", json_text(all));
      return success;
    }
    fmt::print("{}\nmemory {}, {:.1f} GB a second, {:.2f} µs an instruction\n", rates.name,
               to_string(rates.memory), rates.bandwidth * 1e-9, rates.launch_us);
    if (rates.cache.count > 0)
      fmt::print("cache {}, {:.1f} GB a second\n", to_string(rates.cache),
                 rates.cache_bandwidth * 1e-9);
    fmt::print("{:<14}{:>12}{:>12}{:>12}{:>12}   10⁹ operations a second\n", "", "float32",
               "bfloat16", "float16", "float64");
    for (int k = 0; k < work_count; ++k) {
      const WorkRate& rate = rates[static_cast<Work>(k)];
      fmt::print("{:<14}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}\n", ebb::name(static_cast<Work>(k)),
                 rate.f32 * 1e-9, rate.bf16 * 1e-9, rate.f16 * 1e-9, rate.f64 * 1e-9);
    }
    if (disk)
      fmt::print(
          "disk of {}: reads {:.2f}, writes {:.2f}, both at once {:.2f} GB a second each ({}, {} "
          "the "
          "page cache)\n",
          folder_->string(), disk->read * 1e-9, disk->write * 1e-9, disk->each_of_both * 1e-9,
          disk->method, disk->direct ? "bypassing" : "through");
    return success;
  }

 private:
  // Includes what is known of the device's libraries: with it, plans made elsewhere depend on
  // nothing else.
  void save(const Rates& rates, Device device) const {
    io::save_device(rates, *save_);
    if (!backend_of(device).can_be_tuned(device)) return;
    const auto tuning = known_tuning(device);
    if (!tuning->libraries.empty()) io::save_tuning(*tuning, *save_);
  }

  std::string device_ = "cpu";
  std::optional<std::filesystem::path> save_, folder_;
};

}  // namespace

std::unique_ptr<Verb> probe_verb() { return std::make_unique<Probe>(); }

}  // namespace ebb::cli
