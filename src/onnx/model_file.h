// Writes a graph as an ONNX file (onnx.proto gives the messages), with the weights inside it or in
// a second file.
#pragma once

#include <filesystem>
#include <optional>

#include "ebb/bytes.h"
#include "ebb/onnx/export.h"
#include "onnx/graph.h"

namespace ebb::onnx {

// A protobuf message is at most one byte smaller than this.
inline constexpr Bytes message_limit = 2_GiB;
// Of weights in a file of their own: a page, so that readers can map them.
inline constexpr Bytes external_alignment = 4_KiB;

struct Written {
  Bytes model, external;  // sizes of the files
  std::optional<std::filesystem::path> external_file;
};

// Both files appear whole or not at all, the one with the weights first. `limit` is the size from
// which a model's weights get a file of their own; tests lower it.
Written write_model(const Graph& graph, const std::filesystem::path& file, int opset,
                    ExternalData external, Bytes limit = message_limit);

// The version of the file's own format that came with an opset.
std::int64_t ir_version(int opset);

}  // namespace ebb::onnx
