// Identifies a set of data, so that a resumed run is known to continue with its own.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/data/dataset.h"
#include "ebb/workloads/workload.h"

namespace ebb::workloads {

// Facts by name: the number of items and a hash of some of them, and for every file of the source
// its size and a hash of its content. Files above 64 MiB are sampled. In a folder, the files that
// count are those that data is read from (.txt, .bin, .gz, .csv, .jsonl, -ubyte) and that lie
// directly in it; in a folder of images, the files of all its classes, hashed together.
using DataFingerprint = std::map<std::string, std::string>;
DataFingerprint data_fingerprint(const std::optional<std::filesystem::path>& source,
                                 const data::Dataset& items);

// The same for the files that decide what is trained, if the options name folders: config.json,
// weights and tokenizer.json of a model, settings and weights of an adapter. Names of these facts
// start with "model " and "adapter ".
DataFingerprint model_fingerprint(const Options& options);

// The facts of the source's files alone, which need no data set to be made.
DataFingerprint files_fingerprint(const std::optional<std::filesystem::path>& source);

// The facts as a checkpoint holds them: a JSON object, whose values that are no texts become JSON
// text. Anything else is a ValueError.
DataFingerprint data_fingerprint_from_json(std::string_view text);

}  // namespace ebb::workloads
