// A node of the graph: one application of an op. Nodes are immutable and point only at their
// inputs, so a graph has no cycles and is freed with its last handle.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/attributes.h"
#include "ebb/op.h"
#include "ebb/tensor.h"
#include "ebb/tier.h"

namespace ebb {

class Storage;

// The categories by which reports break down memory.
enum class Category : std::uint8_t {
  weights,
  gradients,
  optimizer,
  activations,
  inputs,
  workspace
};
inline constexpr int category_count = 6;
std::string_view name(Category category);

// Hints for planner and reports from the code that made a node. They do not change results.
struct Marks {
  bool backward = false;          // made by differentiation
  std::uint32_t block = 0;        // number of the outermost call of a List's module; 0: none
  std::uint32_t checkpoint = 0;   // number of the outermost checkpointed region; 0: none
  std::uint32_t keep_one_in = 0;  // every n-th node of that region is kept; 0: none
};

// While it exists, nodes made on this thread get these marks.
class MarkScope {
 public:
  explicit MarkScope(const Marks& marks);
  ~MarkScope();
  MarkScope(const MarkScope&) = delete;
  MarkScope& operator=(const MarkScope&) = delete;

 private:
  Marks outer_;
};
const Marks& current_marks();

class Node : public std::enable_shared_from_this<Node> {
 public:
  Node(const Op& op, Attributes attributes, std::vector<Tensor> inputs,
       std::vector<TensorType> outputs, Device device, std::string path);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const Op& op() const { return op_; }
  const Attributes& attributes() const { return attributes_; }
  const std::vector<Tensor>& inputs() const { return inputs_; }
  const std::vector<TensorType>& outputs() const { return outputs_; }
  Device device() const { return device_; }
  const std::string& path() const { return path_; }
  std::uint64_t id() const { return id_; }  // grows in order of creation: inputs before users

  // The memory of a constant or variable; null for all other nodes.
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  void set_storage(std::shared_ptr<Storage> storage) { storage_ = std::move(storage); }

  // The tier of memory that programs use a variable in; none before the first program.
  std::optional<Tier> tier() const { return tier_; }
  void set_tier(Tier tier) { tier_ = tier; }

  // The initial value of a variable that has no storage yet.
  const Tensor& initial() const { return initial_; }
  void set_initial(Tensor initial) { initial_ = std::move(initial); }

  // The category of this node's outputs in reports. Does not change results.
  Category category() const { return category_; }
  void set_category(Category category) { category_ = category; }

  const Marks& marks() const { return marks_; }
  void set_marks(const Marks& marks) { marks_ = marks; }

 private:
  const Op& op_;
  Attributes attributes_;
  std::vector<Tensor> inputs_;
  std::vector<TensorType> outputs_;
  Device device_;
  std::string path_;
  std::uint64_t id_;
  std::shared_ptr<Storage> storage_;
  Tensor initial_;
  Category category_ = Category::activations;
  std::optional<Tier> tier_;
  Marks marks_;
};

std::int64_t live_nodes();  // nodes that exist now, in the whole process

// While it exists, nodes made on this thread have `name` in their module path: a relative name is
// appended with a dot, an absolute one replaces the path. Random keys drawn inside depend on the
// path and on how many scopes were entered before, so two uses of a module draw different numbers.
class PathScope {
 public:
  enum class Kind : bool { relative, absolute };
  explicit PathScope(std::string_view name, Kind kind = Kind::relative);
  ~PathScope();
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;

 private:
  std::string outer_path_;
  std::uint64_t outer_draws_;
};
const std::string& current_path();

// While it exists, the module path is `path` and the sequence of random keys starts anew: tracing
// the same code in two such scopes gives the same paths and the same keys.
class TraceScope {
 public:
  explicit TraceScope(std::string path = {});
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  std::string outer_path_;
  std::uint64_t outer_draws_;
};

}  // namespace ebb
