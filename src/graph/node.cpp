#include "ebb/node.h"

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <utility>

#include "ebb/error.h"
#include "ebb/op.h"

namespace ebb {
namespace {

std::atomic<std::int64_t> alive{0};
std::atomic<std::uint64_t> next_id{1};
thread_local Marks marks_now;

// Names the op whose output is too large for its elements to be counted.
void check_countable(const TensorType& type, const Op& op, const std::string& path) {
  try {
    type.shape.elements();
  } catch (const ShapeError& error) {
    throw ShapeError(path.empty()
                         ? fmt::format("[{}] {}", op.name(), error.what())
                         : fmt::format("[{}] at \"{}\": {}", op.name(), path, error.what()));
  }
}

}  // namespace

std::string_view name(Category category) {
  constexpr std::array<std::string_view, category_count> names{
      "weights", "gradients", "optimizer", "activations", "inputs", "workspace"};
  return names[static_cast<std::size_t>(category)];
}

MarkScope::MarkScope(const Marks& marks) : outer_(std::exchange(marks_now, marks)) {}
MarkScope::~MarkScope() { marks_now = outer_; }
const Marks& current_marks() { return marks_now; }

Node::Node(const Op& op, Attributes attributes, std::vector<Tensor> inputs,
           std::vector<TensorType> outputs, Device device, std::string path)
    : op_(op),
      attributes_(std::move(attributes)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      device_(device),
      path_(std::move(path)),
      id_(next_id.fetch_add(1, std::memory_order_relaxed)),
      marks_(marks_now) {
  for (const TensorType& type : outputs_) check_countable(type, op_, path_);
  alive.fetch_add(1, std::memory_order_relaxed);
}

// Frees a long chain without recursion: nested destructors add their inputs to a list that the
// outermost destructor processes.
Node::~Node() {
  alive.fetch_sub(1, std::memory_order_relaxed);
  thread_local std::vector<Tensor>* pending = nullptr;
  if (pending) {
    for (Tensor& input : inputs_) pending->push_back(std::move(input));
    return;
  }
  std::vector<Tensor> list = std::move(inputs_);
  pending = &list;
  while (!list.empty()) {
    const Tensor last = std::move(list.back());
    list.pop_back();
  }
  pending = nullptr;
}

std::int64_t live_nodes() { return alive.load(std::memory_order_relaxed); }

namespace {

const Node& node_of(const Tensor& t) {
  if (t) return *t.node();
  const std::string& path = current_path();
  throw ValueError("[tensor] " + (path.empty() ? "" : "at \"" + path + "\": ") +
                   "an empty tensor has no type and no value");
}

}  // namespace

const TensorType& Tensor::type() const {
  return node_of(*this).outputs()[static_cast<std::size_t>(output_)];
}
Device Tensor::device() const { return node_of(*this).device(); }
std::string_view Tensor::path() const { return node_of(*this).path(); }

std::string to_string(const TensorType& type) {
  return std::string(name(type.dtype)) + " " + to_string(type.shape);
}

}  // namespace ebb
