#include "onnx/builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "core/protobuf.h"
#include "ebb/error.h"
#include "ebb/half.h"
#include "onnx/data_type.h"
#include "onnx/quantised.h"

namespace ebb::onnx {
namespace {

using protobuf::Message;

std::string bytes_of(double value, DType dtype) {
  std::string bytes;
  const auto single = static_cast<float>(value);
  if (dtype == f32)
    Message::little_endian(bytes, std::bit_cast<std::uint32_t>(single));
  else if (dtype == f16)
    Message::little_endian(bytes, Half(single).bits);
  else if (dtype == bf16)
    Message::little_endian(bytes, BFloat16(single).bits);
  else
    throw DTypeError(fmt::format("[onnx] no constant of type {}", name(dtype)));
  return bytes;
}

}  // namespace

Builder::Module::Module(Builder& builder, std::string_view name)
    : builder_(builder), outer_(builder.module_) {
  builder_.module_ = builder_.path(name);
}
Builder::Module::~Module() { builder_.module_ = outer_; }

std::string Builder::path(std::string_view name) const {
  return module_.empty() ? std::string(name) : fmt::format("{}.{}", module_, name);
}

std::string Builder::unique(const std::string& name) {
  const int uses = names_[name]++;
  return uses == 0 ? name : fmt::format("{}_{}", name, uses);
}

Value Builder::input(const std::string& name, DType dtype, std::vector<Axis> axes) {
  graph_.inputs.push_back({name, dtype, std::move(axes)});
  return {name, dtype};
}

void Builder::output(const Value& value, const std::string& name, std::vector<Axis> axes) {
  const auto made = made_.find(value.name);
  if (made == made_.end()) {  // an input or a weight cannot be given another name
    const Value copy = node("Identity", {value});
    return output(copy, name, std::move(axes));
  }
  const auto rename = [&](std::vector<std::string>& list) {
    std::replace(list.begin(), list.end(), value.name, name);
  };
  rename(graph_.nodes[made->second].outputs);
  for (std::size_t i = made->second; i < graph_.nodes.size(); ++i) rename(graph_.nodes[i].inputs);
  graph_.outputs.push_back({name, value.dtype, std::move(axes)});
}

Value Builder::stored(const std::string& name) {
  const std::string in_file = names_in_files_.in_files(name);
  const auto [place, added] = known_.try_emplace(in_file);
  if (!added) return place->second;
  const TensorType type = weights_.type(name);
  graph_.initializers.push_back(
      {in_file, type,
       [this_weights = &weights_, name](const Sink& sink) { this_weights->read(name, sink); },
       Kind::weight});
  return place->second = {in_file, type.dtype};
}

Value Builder::as(const Value& weight, DType dtype) {
  if (weight.dtype == dtype) return weight;
  const std::string key = fmt::format("{} as {}", weight.name, name(dtype));
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  return known_[key] = cast(weight, dtype);
}

Value Builder::weight(std::string_view name, DType dtype) { return as(stored(path(name)), dtype); }
Value Builder::shared_weight(const std::string& name) { return as(stored(name), compute_); }

bool Builder::is_quantised(std::string_view name) const {
  return bits_.has_value() || weights_.packed(path(name)).has_value();
}

Value Builder::quantised_weight(std::string_view name, bool transposed) {
  const std::string own = path(name), in_file = names_in_files_.in_files(own);
  QuantisedInitializers parts =
      quantised_initializers(weights_, own, in_file, bits_.value_or(LowBits::int8), transposed);
  const Value codes{parts.codes.name, u8}, scales{parts.scales.name, f32};
  graph_.initializers.push_back(std::move(parts.codes));
  graph_.initializers.push_back(std::move(parts.scales));
  const Value whole = node("DequantizeLinear", {codes, scales},
                           {{"axis", std::int64_t{1}}, {"block_size", parts.block}}, f32);
  return cast(whole, compute_);
}

std::int64_t Builder::size(std::string_view name, int axis) const {
  return weights_.type(path(name)).shape[axis];
}

Value Builder::table(const std::string& name, const TensorType& type,
                     std::function<void(const Sink&)> write) {
  const std::string in_file = names_in_files_.in_files(name);
  graph_.initializers.push_back({in_file, type, std::move(write), Kind::table});
  return known_[in_file] = {in_file, type.dtype};
}

Value Builder::constant(const std::string& name, const TensorType& type, std::string bytes) {
  const auto [place, added] = known_.try_emplace(name, Value{name, type.dtype});
  if (added)
    graph_.initializers.push_back(
        {name, type,
         [bytes = std::move(bytes)](const Sink& sink) { sink(std::as_bytes(std::span(bytes))); },
         Kind::constant});
  return place->second;
}

Value Builder::scalar(double value, DType dtype) {
  return constant(fmt::format("constant.{}.{}", name(dtype), value), {{}, dtype},
                  bytes_of(value, dtype));
}

Value Builder::integer(std::int64_t value) {
  std::string bytes;
  Message::little_endian(bytes, static_cast<std::uint64_t>(value));
  return constant(fmt::format("constant.int64.{}", value), {{}, i64}, std::move(bytes));
}

Value Builder::integers(const std::vector<std::int64_t>& list) {
  std::string bytes, text;
  for (const std::int64_t value : list) {
    Message::little_endian(bytes, static_cast<std::uint64_t>(value));
    text += fmt::format("{}{}", text.empty() ? "" : ",", value);
  }
  return constant(fmt::format("constant.int64.[{}]", text),
                  {{static_cast<std::int64_t>(list.size())}, i64}, std::move(bytes));
}

Value Builder::node(const char* op, const std::vector<Value>& inputs, Attributes attributes,
                    std::optional<DType> dtype) {
  Node made;
  made.name = unique(fmt::format("{}/{}", module_, op)), made.op = op;
  for (const Value& input : inputs) made.inputs.push_back(input.name);
  made.outputs = {made.name};
  made.attributes = std::move(attributes);
  made.dtype = inputs.front().dtype;
  made_[made.name] = graph_.nodes.size();
  graph_.nodes.push_back(std::move(made));
  return {graph_.nodes.back().name, dtype.value_or(inputs.front().dtype)};
}

std::vector<Value> Builder::split(const Value& x, int parts, std::int64_t axis) {
  node("Split", {x}, {{"axis", axis}, {"num_outputs", std::int64_t{parts}}});
  return parts_of_last(static_cast<std::size_t>(parts), x.dtype);
}

std::vector<Value> Builder::split(const Value& x, const std::vector<std::int64_t>& sizes,
                                  std::int64_t axis) {
  node("Split", {x, integers(sizes)}, {{"axis", axis}});
  return parts_of_last(sizes.size(), x.dtype);
}

std::vector<Value> Builder::parts_of_last(std::size_t parts, DType dtype) {
  Node& made = graph_.nodes.back();
  std::vector<Value> values;
  made_.erase(made.name);
  made.outputs.clear();
  for (std::size_t i = 0; i < parts; ++i) {
    values.push_back({fmt::format("{}:{}", made.name, i), dtype});
    made_[values.back().name] = graph_.nodes.size() - 1;
    made.outputs.push_back(values.back().name);
  }
  return values;
}

Value Builder::cast(const Value& x, DType dtype) {
  if (x.dtype == dtype) return x;
  return node("Cast", {x}, {{"to", data_type(dtype)}}, dtype);
}

Value Builder::axis_size(const Value& x, std::int64_t axis) {
  return node("Shape", {x}, {{"start", axis}, {"end", axis + 1}}, i64);
}

Graph Builder::finish(std::string name) {
  graph_.name = std::move(name);
  return std::move(graph_);
}

}  // namespace ebb::onnx
