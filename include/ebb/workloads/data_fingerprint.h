// What tells two sets of data apart, so that a resumed run is known to go on with its own.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "ebb/data/dataset.h"
#include "ebb/workloads/workload.h"

namespace ebb::workloads {

// Facts by name: the number of items and a hash of some of them, and for every file of the source
// its size and a hash of its content. Files above 64 MiB are sampled. Of a folder, the files count
// that data is read from (.txt, .bin, .gz, .csv, .jsonl, -ubyte) and that lie directly in it, and
// of a folder of images all files of its classes together.
using DataFingerprint = std::map<std::string, std::string>;
DataFingerprint data_fingerprint(const std::optional<std::filesystem::path>& source,
                                 const data::Dataset& items);

// Of the files that decide what is trained, where the options name folders: of a model config.json,
// the weights and tokenizer.json, of an adapter its settings and weights. Names of these facts
// start with "model " and "adapter ".
DataFingerprint model_fingerprint(const Options& options);

// The facts of the source's files alone, which need no data set to be made.
DataFingerprint files_fingerprint(const std::optional<std::filesystem::path>& source);

}  // namespace ebb::workloads
