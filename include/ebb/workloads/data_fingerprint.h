// What tells two sets of data apart, so that a resumed run is known to go on with its own.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "ebb/data/dataset.h"

namespace ebb::workloads {

// Facts by name: the number of items and a hash of some of them, and for every file of the source
// its size and a hash of its content. Files above 64 MiB are sampled. Of a folder, the files count
// that data is read from (.txt, .bin, .gz, .csv, .jsonl, -ubyte) and that lie directly in it.
using DataFingerprint = std::map<std::string, std::string>;
DataFingerprint data_fingerprint(const std::optional<std::filesystem::path>& source,
                                 const data::Dataset& items);

// Of the files of a model folder that decide what is trained: config.json, the weights and
// tokenizer.json. Names of these facts start with "model ".
DataFingerprint model_fingerprint(const std::optional<std::filesystem::path>& folder);

// The facts of the source's files alone, which need no data set to be made.
DataFingerprint files_fingerprint(const std::optional<std::filesystem::path>& source);

}  // namespace ebb::workloads
