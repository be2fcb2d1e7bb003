#include "onnx/model_file.h"

#include <fmt/core.h>

#include <array>
#include <string>

#include "core/protobuf.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/version.h"
#include "onnx/data_type.h"

namespace ebb::onnx {
namespace {

namespace fs = std::filesystem;
using protobuf::Message;

// Field numbers, by the message that has the fields.
namespace model {
constexpr int ir_version = 1, producer = 2, producer_version = 3, graph = 7, opset = 8;
}
namespace opset_id {
constexpr int domain = 1, version = 2;
}
namespace graph_field {
constexpr int node = 1, name = 2, initializer = 5, input = 11, output = 12;
}
namespace node_field {
constexpr int input = 1, output = 2, name = 3, op = 4, attribute = 5;
}
namespace attribute_field {
constexpr int name = 1, real = 2, integer = 3, integers = 8, type = 20;
constexpr std::int64_t is_real = 1, is_integer = 2, is_integers = 7;
}  // namespace attribute_field
namespace tensor {
constexpr int axis = 1, type = 2, name = 8, bytes = 9, external = 13, location = 14;
constexpr std::int64_t elsewhere = 1;  // of `location`
}  // namespace tensor
namespace entry {
constexpr int key = 1, value = 2;
}
namespace port {
constexpr int name = 1, type = 2, tensor_type = 1, element = 1, shape = 2, axis = 1, size = 1,
              axis_name = 2;
}

Message encoded(const Attribute& attribute) {
  namespace f = attribute_field;
  Message message;
  message.bytes(f::name, attribute.name);
  if (const auto* integer = std::get_if<std::int64_t>(&attribute.value))
    message.integer(f::integer, *integer).integer(f::type, f::is_integer);
  else if (const auto* real = std::get_if<float>(&attribute.value))
    message.real32(f::real, *real).integer(f::type, f::is_real);
  else {
    for (const std::int64_t item : std::get<std::vector<std::int64_t>>(attribute.value))
      message.integer(f::integers, item);
    message.integer(f::type, f::is_integers);
  }
  return message;
}

Message encoded(const Node& node) {
  namespace f = node_field;
  Message message;
  for (const std::string& input : node.inputs) message.bytes(f::input, input);
  for (const std::string& output : node.outputs) message.bytes(f::output, output);
  message.bytes(f::name, node.name).bytes(f::op, node.op);
  for (const Attribute& a : node.attributes) message.message(f::attribute, encoded(a));
  return message;
}

Message encoded(const Port& port) {
  namespace f = onnx::port;
  Message shape;
  for (const Axis& axis : port.axes) {
    Message one;
    if (const auto* size = std::get_if<std::int64_t>(&axis))
      one.integer(f::size, *size);
    else
      one.bytes(f::axis_name, std::get<std::string>(axis));
    shape.message(f::axis, one);
  }
  const Message tensor =
      Message().integer(f::element, data_type(port.dtype)).message(f::shape, shape);
  return Message()
      .bytes(f::name, port.name)
      .message(f::type, Message().message(f::tensor_type, tensor));
}

// A tensor's message without its bytes.
Message header(const Initializer& initializer) {
  Message message;
  for (const std::int64_t size : initializer.type.shape) message.integer(tensor::axis, size);
  message.integer(tensor::type, initializer.small ? data_type(*initializer.small)
                                                  : data_type(initializer.type.dtype));
  return message.bytes(tensor::name, initializer.name), message;
}

Message text_entry(std::string_view key, std::string_view value) {
  return Message().bytes(entry::key, key).bytes(entry::value, value);
}

// Passes on a tensor's bytes, and checks that their number is the one its type implies.
void write_bytes(io::AtomicFile& file, const Initializer& initializer) {
  Bytes written;
  initializer.write([&](std::span<const std::byte> piece) {
    written += Bytes{static_cast<std::int64_t>(piece.size())};
    file.write(piece);
  });
  if (written != initializer.bytes())
    throw ValueError(fmt::format("[onnx] \"{}\" should have {} bytes, but gave {}",
                                 initializer.name, initializer.bytes().count, written.count));
}

// The model's file: all messages that are held in memory, and the tensors whose bytes are written
// between them.
class ModelFile {
 public:
  ModelFile(const Graph& graph, int opset) : graph_(graph) {
    namespace f = graph_field;
    for (const Node& node : graph.nodes) front_.message(f::node, encoded(node));
    front_.bytes(f::name, graph.name);
    for (const Port& input : graph.inputs) front_.message(f::input, encoded(input));
    for (const Port& output : graph.outputs) front_.message(f::output, encoded(output));
    const Message operators =
        Message().bytes(opset_id::domain, "").integer(opset_id::version, opset);
    head_.integer(model::ir_version, ir_version(opset))
        .bytes(model::producer, "ebb")
        .bytes(model::producer_version, version())
        .message(model::opset, operators);
  }

  // Gives every weight and table a place in the file `location`; returns the file's size.
  Bytes place_outside(const std::string& location) {
    Bytes end;
    for (const Initializer& initializer : graph_.initializers) {
      if (initializer.kind == Kind::constant) continue;
      const Bytes size = initializer.bytes(), begin = round_up(end, external_alignment);
      end = begin + size;
      Message message = header(initializer);
      message.message(tensor::external, text_entry("location", location))
          .message(tensor::external, text_entry("offset", std::to_string(begin.count)))
          .message(tensor::external, text_entry("length", std::to_string(size.count)))
          .integer(tensor::location, tensor::elsewhere);
      front_.message(graph_field::initializer, message);
    }
    outside_ = true;
    return end;
  }

  Bytes size() const {
    return bytes(head_) + bytes(Message().begin_bytes(model::graph, graph_size())) +
           Bytes{static_cast<std::int64_t>(graph_size())};
  }

  void write(io::AtomicFile& file) const {
    file.write(head_.encoded());
    file.write(Message().begin_bytes(model::graph, graph_size()).encoded());
    file.write(front_.encoded());
    for (const Initializer& initializer : graph_.initializers) {
      if (!inside(initializer)) continue;
      file.write(before(initializer).encoded());
      write_bytes(file, initializer);
    }
  }

 private:
  static Bytes bytes(const Message& message) { return {static_cast<std::int64_t>(message.size())}; }
  bool inside(const Initializer& i) const { return !outside_ || i.kind == Kind::constant; }

  // Everything of a tensor's field in the graph that precedes its bytes.
  static Message before(const Initializer& initializer) {
    const auto size = static_cast<std::uint64_t>(initializer.bytes().count);
    const Message named = header(initializer), begin = Message().begin_bytes(tensor::bytes, size);
    Message message;
    message.begin_bytes(graph_field::initializer, named.size() + begin.size() + size);
    return message.append(named).append(begin), message;
  }
  std::uint64_t graph_size() const {
    std::uint64_t size = front_.size();
    for (const Initializer& initializer : graph_.initializers)
      if (inside(initializer))
        size += before(initializer).size() + static_cast<std::uint64_t>(initializer.bytes().count);
    return size;
  }

  const Graph& graph_;
  Message head_, front_;
  bool outside_ = false;
};

void write_outside(io::AtomicFile& file, const Graph& graph) {
  constexpr std::array<std::byte, external_alignment.count> zeros{};
  Bytes end;
  for (const Initializer& initializer : graph.initializers) {
    if (initializer.kind == Kind::constant) continue;
    const Bytes begin = round_up(end, external_alignment);
    file.write(std::span(zeros).first(static_cast<std::size_t>((begin - end).count)));
    write_bytes(file, initializer);
    end = begin + initializer.bytes();
  }
}

}  // namespace

std::int64_t ir_version(int opset) {
  // The first opset of each version of the format, from ONNX's table of releases.
  constexpr std::array<std::pair<int, std::int64_t>, 6> firsts{
      {{25, 13}, {24, 12}, {23, 11}, {21, 10}, {19, 9}, {0, 8}}};
  for (const auto& [first, version] : firsts)
    if (opset >= first) return version;
  return 8;
}

Written write_model(const Graph& graph, const fs::path& path, int opset, ExternalData external,
                    Bytes limit) {
  ModelFile model(graph, opset);
  Written written;
  if (external == ExternalData::no && model.size() >= limit)
    throw ValueError(fmt::format(
        "{}: the model takes {} and a single ONNX file less than {}; its weights need a file of "
        "their own",
        path.string(), to_string(model.size()), to_string(limit)));
  if (external == ExternalData::yes ||
      (external == ExternalData::when_needed && model.size() >= limit)) {
    fs::path data = path;
    data += ".data";
    written.external = model.place_outside(data.filename().string());
    written.external_file = data;
    io::AtomicFile weights(data), file(path);
    write_outside(weights, graph);
    model.write(file);
    weights.commit();
    file.commit();
  } else {
    io::AtomicFile file(path);
    model.write(file);
    file.commit();
  }
  written.model = model.size();
  return written;
}

}  // namespace ebb::onnx
