#include "ebb/io/device_file.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <optional>

#include "core/json.h"
#include "data/file.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/probe.h"
#include "ebb/threads.h"
#include "io/json_file.h"

namespace ebb::io {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* work_field = "operations_per_second";
constexpr const char* links_field = "links_bytes_per_second";  // to other tiers of memory
constexpr const char* factors_field = "time_factors";          // of ops, by name
constexpr const char* ranks_field = "link_between_ranks";
constexpr const char* version_field = "version";

// The version of what is measured and in which units. Cached rates of another version are measured
// again; files named by the user are used as they are.
constexpr std::int64_t version = 6;

// Beyond these limits, times of instructions would overflow or vanish, in any unit of the file.
constexpr double lowest_rate = 1e-9, highest_rate = 1e24;

double positive(const JsonFile& file, const nlohmann::json& object, const char* field) {
  const auto found = object.find(field);
  const double value =
      found != object.end() && found->is_number() ? found->get<double>() : std::nan("");
  if (!(value >= lowest_rate && value <= highest_rate))
    file.fail(fmt::format("\"{}\" must be a number from {:g} to {:g}, but is {}", field,
                          lowest_rate, highest_rate,
                          found == object.end() ? "missing" : json_excerpt(*found)));
  return value;
}

// Zero if the field is missing. Accepts 141e9 as well as 141000000000.
Bytes bytes_in(const JsonFile& file, const char* field) {
  constexpr double most = 0x1p60;
  const double value = file.real(field, 0.0);
  if (!(value >= 0.0 && value <= most))
    file.fail(fmt::format("\"{}\" must be a number of bytes from 0 to 2^60, but is {}", field,
                          json_excerpt(file.json().at(field))));
  return {static_cast<std::int64_t>(value)};
}

const nlohmann::json& object_in(const JsonFile& file, const nlohmann::json& object,
                                const std::string& field) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_object())
    file.fail(fmt::format("\"{}\" must be an object, but is {}", field,
                          found == object.end() ? "missing" : json_excerpt(*found)));
  return *found;
}

// One file for each device, or for each number of threads; empty without a cache folder.
std::optional<fs::path> cache_file(Device device) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if ((!cache || !*cache) && (!home || !*home)) return {};
  const fs::path folder = cache && *cache ? fs::path(cache) : fs::path(home) / ".cache";
  const std::string kind = device.kind == Device::Kind::cuda ? fmt::format("cuda-{}", device.index)
                                                             : fmt::format("{}-threads", threads());
  return folder / "ebb" / fmt::format("rates-{}.json", kind);
}

Device::Kind kind_in(const JsonFile& file) {
  const std::string kind = file.text("kind", "cpu");
  if (kind != "cpu" && kind != "cuda")
    file.fail(fmt::format("\"kind\" must be cpu or cuda, but is \"{}\"", kind));
  return kind == "cuda" ? Device::Kind::cuda : Device::Kind::cpu;
}

}  // namespace

Rates load_device(const fs::path& path) {
  const JsonFile file(path);
  Rates rates;
  rates.name = file.text("name");
  rates.kind = kind_in(file);
  rates.memory = bytes_in(file, "memory_bytes");
  rates.bandwidth = positive(file, file.json(), "bytes_per_second");
  rates.launch_us = positive(file, file.json(), "launch_us");
  rates.cache = bytes_in(file, "cache_bytes");
  if (rates.cache.count > 0)
    rates.cache_bandwidth = positive(file, file.json(), "cache_bytes_per_second");
  rates.overlaps = file.flag("overlaps", true);
  const nlohmann::json& all = object_in(file, file.json(), work_field);
  for (int k = 0; k < work_count; ++k) {
    const Work kind = static_cast<Work>(k);
    const nlohmann::json& row = object_in(file, all, std::string(name(kind)));
    rates[kind] = {positive(file, row, "float32"), positive(file, row, "bfloat16"),
                   positive(file, row, "float16"), positive(file, row, "float64")};
  }
  if (file.json().contains(links_field)) {
    const nlohmann::json& links = object_in(file, file.json(), links_field);
    for (const Tier tier : {Tier::host, Tier::disk})
      if (const std::string of(name(tier)); links.contains(of)) {
        const nlohmann::json& row = object_in(file, links, of);
        rates.links[tier] = {positive(file, row, "fetch"), positive(file, row, "store")};
      }
  }
  if (file.json().contains(factors_field)) {
    const nlohmann::json& factors = object_in(file, file.json(), factors_field);
    for (const auto& [op, factor] : factors.items())
      rates.factors[op] = positive(file, factors, op.c_str());
  }
  if (file.json().contains(ranks_field)) {
    const nlohmann::json& link = object_in(file, file.json(), ranks_field);
    rates.ranks = {positive(file, link, "bytes_per_second"), positive(file, link, "latency_us")};
  }
  return rates;
}

std::string describe_device(const Rates& rates) {
  OrderedJson work;
  for (int k = 0; k < work_count; ++k) {
    const Work kind = static_cast<Work>(k);
    work[std::string(name(kind))] = {{"float32", rates[kind].f32},
                                     {"bfloat16", rates[kind].bf16},
                                     {"float16", rates[kind].f16},
                                     {"float64", rates[kind].f64}};
  }
  OrderedJson all{{"name", rates.name},
                  {"kind", rates.kind == Device::Kind::cuda ? "cuda" : "cpu"},
                  {"memory_bytes", rates.memory.count},
                  {"bytes_per_second", rates.bandwidth},
                  {"launch_us", rates.launch_us},
                  {"overlaps", rates.overlaps}};
  if (rates.cache.count > 0) {
    all["cache_bytes"] = rates.cache.count;
    all["cache_bytes_per_second"] = rates.cache_bandwidth;
  }
  all[work_field] = work;
  for (const Tier tier : {Tier::host, Tier::disk})
    all[links_field][std::string(name(tier))] = {{"fetch", rates.links[tier].fetch},
                                                 {"store", rates.links[tier].store}};
  for (const auto& [op, factor] : rates.factors) all[factors_field][op] = factor;
  all[ranks_field] = {{"bytes_per_second", rates.ranks.bandwidth},
                      {"latency_us", rates.ranks.latency_us}};
  all[version_field] = version;
  return json_text(all);
}

void save_device(const Rates& rates, const fs::path& path) {
  AtomicFile file(path);
  file.write(json_text(parse_ordered_json(describe_device(rates)), 2) + "\n");
  file.commit();
}

Rates rates_here(Device device) {
  const std::optional<fs::path> path = cache_file(device);
  std::error_code none;
  if (path && fs::exists(*path, none)) {
    try {
      if (JsonFile(*path).integer(version_field, 0, 0) == version) return load_device(*path);
    } catch (const FileError&) {  // damaged: measured again
    }
  }
  const Rates rates = measure_rates(device);
  if (path) {
    try {
      fs::create_directories(path->parent_path());
      save_device(rates, *path);
    } catch (const std::exception&) {  // the cache is optional
    }
  }
  return rates;
}

fs::path tuning_file(const fs::path& device_file) {
  return fs::path(device_file).replace_extension(".tuning.json");
}

Tuning load_tuning(const fs::path& device_file) {
  const fs::path path = tuning_file(device_file);
  std::error_code none;
  if (!fs::exists(path, none)) return {};
  try {
    return parse_tuning(data::File(path).text(max_json_file), path.string());
  } catch (const ValueError& error) {
    throw FileError(error.what());
  }
}

void save_tuning(const Tuning& tuning, const fs::path& device_file) {
  AtomicFile file(tuning_file(device_file));
  file.write(tuning_text(tuning) + "\n");
  file.commit();
}

}  // namespace ebb::io
