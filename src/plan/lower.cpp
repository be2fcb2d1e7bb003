#include "plan/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/storage.h"
#include "ops/leaf/leaf.h"
#include "passes/layout.h"
#include "plan/schedule.h"

namespace ebb {
namespace {

Bytes buffer_size(const TensorType& type) { return round_up(type.bytes(), buffer_alignment); }

class Lowering {
 public:
  Lowering(const Graph& graph, const Order& order, const PlanOptions& options)
      : graph_(graph),
        release_(options.release),
        rates_(options.rates),
        tf32_(options.tf32),
        order_(order) {
    for (const auto& node : order_)
      for (std::size_t o = 0; o < node->outputs().size(); ++o)
        layouts_.add({node, static_cast<int>(o)});
    find_last_reads();
    for (std::size_t i = 0; i < graph.outputs.size(); ++i)
      output_of_[graph.outputs[i]] = static_cast<int>(i);
    for (const Update& update : graph.updates) update_of_[update.value] = update.target;
  }

  Lowered run() {
    find_device();
    for (const Tensor& input : graph_.inputs) plan_.input_buffers.push_back(add_leaf(input));
    position_ = 0;
    for (const auto& node : order_) {
      if (is_leaf(node->op()))
        add_leaf({node, 0});
      else if (!node->op().is_view())
        add_instruction(node);
    }
    const int graph_instructions = position_;
    copy_leftover_updates();
    finish_lifetimes();
    for (const Tensor& output : graph_.outputs)
      plan_.output_buffers.push_back(buffers_of_.at(output));
    return {std::move(plan_), graph_instructions};
  }

 private:
  // A program runs on one device: that of its nodes.
  void find_device() {
    if (order_.empty()) return;
    plan_.device = order_.front()->device();
    for (const auto& node : order_)
      if (node->device() != plan_.device)
        throw DeviceError(fmt::format(
            "[compile] all of a program must be on one device, but \"{}\" ({}) is on {} "
            "and others on {}",
            node->path(), node->op().name(), to_string(node->device()), to_string(plan_.device)));
  }

  // Instruction numbers after which a buffer's root is not read again.
  void find_last_reads() {
    int position = 0;
    for (const auto& node : order_) {
      if (is_leaf(node->op()) || node->op().is_view()) continue;
      for (const Tensor& input : node->inputs()) last_read_[layouts_.root(input)] = position;
      ++position;
    }
  }
  bool read_after(const Tensor& root, int position) const {
    const auto found = last_read_.find(root);
    return found != last_read_.end() && found->second > position;
  }

  int new_buffer(const Node& node, Bytes size, Category category) {
    Buffer buffer;
    buffer.size = size;
    buffer.category = category;
    buffer.first = buffer.last = position_;
    buffer.path = node.path();
    buffer.op = node.op().name();
    plan_.buffers.push_back(std::move(buffer));
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  int add_leaf(const Tensor& leaf) {
    if (const auto found = buffers_of_.find(leaf); found != buffers_of_.end()) return found->second;
    const int index = new_buffer(*leaf.node(), buffer_size(leaf.type()), leaf.node()->category());
    Buffer& buffer = plan_.buffers[static_cast<std::size_t>(index)];
    if (&leaf.node()->op() != &input_op()) buffer.persistent = leaf.node();
    buffer.first = 0;
    return buffers_of_[leaf] = index;
  }

  Operand operand(const Tensor& tensor) const {
    return {buffers_of_.at(layouts_.root(tensor)), layouts_[tensor], tensor.type()};
  }

  void add_instruction(const std::shared_ptr<Node>& node) {
    Instruction instruction;
    instruction.node = node;
    for (const Tensor& input : node->inputs()) instruction.inputs.push_back(operand(input));
    if (release_ == Release::early)
      for (const InPlace& pair : node->op().in_place(node->attributes()))
        if (fits_over(*node, instruction, pair)) instruction.overwritable.push_back(pair);
    std::unordered_set<int> reused;
    for (std::size_t o = 0; o < node->outputs().size(); ++o) {
      const Tensor output(node, static_cast<int>(o));
      buffers_of_[output] = output_buffer(output, instruction, reused);
      instruction.outputs.push_back(operand(output));
    }
    bind(instruction);
    plan_.instructions.push_back(std::move(instruction));
    ++position_;
  }

  int output_buffer(const Tensor& output, const Instruction& instruction,
                    std::unordered_set<int>& reused) {
    const Node& node = *output.node();
    if (const auto found = output_of_.find(output); found != output_of_.end()) {
      const int index = new_buffer(node, buffer_size(output.type()), node.category());
      plan_.buffers[static_cast<std::size_t>(index)].output = found->second;
      return index;
    }
    if (const auto found = update_of_.find(output);
        found != update_of_.end() && updates_in_place(node, instruction, found->second)) {
      settled_.insert(output);
      return add_leaf(found->second);
    }
    for (const InPlace& pair : instruction.overwritable) {
      const std::size_t input = static_cast<std::size_t>(pair.input);
      const int index = instruction.inputs[input].buffer;
      if (pair.output != output.output() ||
          read_after(layouts_.root(node.inputs()[input]), position_) ||
          !reused.insert(index).second)
        continue;
      if (node.category() == Category::gradients)
        plan_.buffers[static_cast<std::size_t>(index)].category = Category::gradients;
      return index;
    }
    return new_buffer(node, buffer_size(output.type()), node.category());
  }

  // Whether the pair's input is a whole transient buffer of the output's size that this instruction
  // reads in no other way. If nobody reads it later either, the output may lie there.
  bool fits_over(const Node& node, const Instruction& instruction, const InPlace& pair) const {
    if (pair.input >= static_cast<int>(node.inputs().size())) return false;
    const Operand& operand = instruction.inputs[static_cast<std::size_t>(pair.input)];
    const Tensor root = layouts_.root(node.inputs()[static_cast<std::size_t>(pair.input)]);
    if (update_of_.contains(root)) return false;  // still to be copied into its variable
    return plan_.buffers[static_cast<std::size_t>(operand.buffer)].in_arena() &&
           whole_and_equal(operand, root, node.outputs()[static_cast<std::size_t>(pair.output)]) &&
           read_only_as(instruction, operand);
  }

  static bool whole_and_equal(const Operand& operand, const Tensor& root,
                              const TensorType& output) {
    return operand.type.shape == output.shape &&
           size_of(operand.type.dtype) == size_of(output.dtype) && operand.layout.offset == 0 &&
           operand.arg().contiguous() && root.type().bytes() == output.bytes();
  }

  // Whether the instruction reads the operand's buffer in this one layout only.
  static bool read_only_as(const Instruction& instruction, const Operand& operand) {
    return std::all_of(instruction.inputs.begin(), instruction.inputs.end(),
                       [&](const Operand& other) {
                         return other.buffer != operand.buffer ||
                                (other.type.shape == operand.type.shape &&
                                 other.layout.offset == 0 && other.arg().contiguous());
                       });
  }

  // Whether a node may write its result straight into a variable: nobody reads the old value later,
  // and the node itself reads it, if at all, where its op allows writing over it.
  bool updates_in_place(const Node& node, const Instruction& instruction, const Variable& target) {
    if (read_after(target, position_)) return false;
    const int own = add_leaf(target);
    bool aliases = true;
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (instruction.inputs[i].buffer != own) continue;
      const std::vector<InPlace> pairs = node.op().in_place(node.attributes());
      const bool legal = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
        return p.input == static_cast<int>(i);
      });
      const Layout layout = layouts_[node.inputs()[i]];
      aliases &= legal && layout.offset == 0 && node.inputs()[i].shape() == target.shape() &&
                 is_contiguous(target.shape(), layout.strides);
    }
    return aliases;
  }

  void bind(Instruction& instruction) {
    std::vector<Arg> inputs, outputs;
    for (const Operand& operand : instruction.inputs) inputs.push_back(operand.arg());
    for (const Operand& operand : instruction.outputs) outputs.push_back(operand.arg());
    const Node& node = *instruction.node;
    const Cost cost = cost_of(instruction);
    instruction.work = cost.work;
    instruction.predicted_ms = rates_.predict_ms(cost, computed_in(node, cost.work));
    instruction.kernel =
        node.op().bind({node.op(), inputs, outputs, node.device(), tf32_}, node.attributes());
    if (instruction.kernel.workspace.count > 0)
      instruction.workspace = new_buffer(
          node, round_up(instruction.kernel.workspace, buffer_alignment), Category::workspace);
  }

  static Cost cost_of(const Instruction& instruction) {
    const Node& node = *instruction.node;
    std::vector<TensorType> inputs;
    for (const Tensor& input : node.inputs()) inputs.push_back(input.type());
    Cost cost = node.op().cost(inputs, node.outputs(), node.attributes());
    // What is written over an input is not fetched again to be written.
    for (const Operand& output : instruction.outputs)
      if (std::any_of(instruction.inputs.begin(), instruction.inputs.end(),
                      [&](const Operand& input) { return input.buffer == output.buffer; }))
        cost.moved = std::max(Bytes{}, cost.moved - output.type.bytes());
    return cost;
  }

  // Products are done on their factors, which a loss's result does not show the type of.
  static DType computed_in(const Node& node, Work work) {
    if (work != Work::elementwise && !node.inputs().empty()) return node.inputs()[0].dtype();
    return node.outputs().empty() ? f32 : node.outputs()[0].dtype;
  }

  // Updates whose value could not be computed in place are copied over at the end.
  void copy_leftover_updates() {
    for (const Update& update : graph_.updates) {
      if (settled_.contains(update.value) ||
          update.value == static_cast<const Tensor&>(update.target))
        continue;
      const auto node = contiguous(update.value).node();
      Instruction instruction;
      instruction.node = node;
      instruction.inputs = {operand(update.value)};
      instruction.outputs = {{add_leaf(update.target),
                              {contiguous_strides(update.target.shape()), 0},
                              update.target.type()}};
      bind(instruction);
      plan_.instructions.push_back(std::move(instruction));
      ++position_;
    }
  }

  void finish_lifetimes() {
    const int end = std::max(0, static_cast<int>(plan_.instructions.size()) - 1);
    for (std::size_t i = 0; i < plan_.instructions.size(); ++i) {
      const auto touch = [&](int buffer) {
        Buffer& b = plan_.buffers[static_cast<std::size_t>(buffer)];
        b.last = std::max(b.last, static_cast<int>(i));
      };
      for (const Operand& operand : plan_.instructions[i].inputs) touch(operand.buffer);
      for (const Operand& operand : plan_.instructions[i].outputs) touch(operand.buffer);
    }
    for (Buffer& buffer : plan_.buffers) {
      buffer.first = std::min(buffer.first, end);
      buffer.last = std::min(buffer.last, end);
      if (release_ == Release::at_end && buffer.category != Category::workspace) buffer.last = end;
    }
  }

  const Graph& graph_;
  Release release_;
  const Rates& rates_;
  bool tf32_;
  const Order& order_;
  LayoutMap layouts_;
  std::unordered_map<Tensor, int> last_read_;  // root → instruction
  std::unordered_map<Tensor, int> output_of_;
  std::unordered_map<Tensor, Variable> update_of_;
  std::unordered_set<Tensor> settled_;
  std::unordered_map<Tensor, int> buffers_of_;
  Plan plan_;
  int position_ = 0;
};

}  // namespace

Lowered lower(const Graph& graph, const Order& order, const PlanOptions& options) {
  return Lowering(graph, order, options).run();
}

}  // namespace ebb
