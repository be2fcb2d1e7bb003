#include "plan/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/storage.h"
#include "ops/collective/collective.h"
#include "ops/leaf/leaf.h"
#include "ops/transfer/transfer.h"
#include "passes/layout.h"
#include "plan/request.h"
#include "plan/schedule.h"

namespace ebb::planning {
namespace {

const Tuning& nothing_known() {
  static const Tuning none;
  return none;
}

Bytes buffer_size(const TensorType& type) { return round_up(type.bytes(), buffer_alignment); }

class Lowering {
 public:
  Lowering(const Graph& graph, const Order& order, const PlanOptions& options)
      : graph_(graph),
        release_(options.release),
        rates_(options.rates),
        tuning_(options.tuning ? *options.tuning : nothing_known()),
        order_(order) {
    plan_.tf32 = options.tf32;
    plan_.spaces.add({.size = {}, .pages = options.pages});
    plan_.lanes.add({Lane::Kind::compute});
    find_tiers();
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
    for (const Tensor& input : graph_.inputs) plan_.inputs.push_back(port(input, add_leaf(input)));
    for (const auto& node : order_) {
      if (is_leaf(node->op()))
        add_leaf({node, 0});
      else if (!node->op().is_view())
        add_instruction(node);
    }
    const int graph_instructions = static_cast<int>(plan_.instructions.size());
    copy_leftover_updates();
    finish_lifetimes();
    for (const Tensor& output : graph_.outputs)
      plan_.outputs.push_back(port(output, buffers_of_.at(output)));
    plan_.tuning = tuning_.used();
    return {std::move(plan_), std::move(nodes_), graph_instructions};
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

  // Finds the variables that are outside the device, from the transfers that the graph has. Buffers
  // that a file is read into or written from must be aligned as direct transfers require.
  void find_tiers() {
    for (const auto& node : order_) {
      if (!is_transfer(node->op())) continue;
      const Tier tier = node->attributes().as<TransferAttributes>().tier;
      if (tier == Tier::disk) plan_.spaces[arena_space].alignment = file_alignment;
      if (const Tensor& input = node->inputs()[0]; is_leaf(input.node()->op()))
        tier_of_leaf_[input.node().get()] = tier;
    }
    for (const Update& update : graph_.updates)
      if (&update.value.node()->op() == &store_op())
        tier_of_leaf_[update.target.node().get()] =
            update.value.node()->attributes().as<TransferAttributes>().tier;
  }

  // The space of a tier for buffers of a step; added at the first call.
  SpaceId space_of(Tier tier) {
    for (const SpaceId s : plan_.spaces.ids())
      if (plan_.spaces[s].tier == tier) return s;
    return plan_.spaces.add({.tier = tier, .alignment = file_alignment});
  }

  // The last instruction that reads each root (the tensor that owns a buffer), also through views.
  void find_last_reads() {
    InstructionId position(0);
    for (const auto& node : order_) {
      if (is_leaf(node->op()) || node->op().is_view()) continue;
      for (const Tensor& input : node->inputs()) last_read_[layouts_.root(input)] = position;
      ++position;
    }
  }
  bool read_after(const Tensor& root, InstructionId position) const {
    const auto found = last_read_.find(root);
    return found != last_read_.end() && found->second > position;
  }

  // The id that the next instruction gets.
  InstructionId position() const { return InstructionId(plan_.instructions.size()); }

  BufferId new_buffer(const Node& node, Bytes size, Category category) {
    return plan_.buffers.add({.size = round_up(size, plan_.spaces[arena_space].alignment),
                              .category = category,
                              .first = position(),
                              .last = position(),
                              .place = {.space = arena_space, .leaf = {}},
                              .path = node.path(),
                              .op = node.op().name()});
  }

  // The buffer of an input, a constant or a variable; added at the first call.
  BufferId add_leaf(const Tensor& leaf) {
    if (const auto found = buffers_of_.find(leaf); found != buffers_of_.end()) return found->second;
    const Node& node = *leaf.node();
    const ValueId value = values_of_[leaf] = plan_.values.add({leaf.type(), {}});
    const BufferId index = new_buffer(node, buffer_size(leaf.type()), node.category());
    plan_.buffers[index].first = InstructionId(0);
    if (&node.op() != &input_op()) {
      const Leaf::Kind kind =
          &node.op() == &variable_op() ? Leaf::Kind::variable : Leaf::Kind::constant;
      const auto away = tier_of_leaf_.find(&node);
      const Tier tier = away == tier_of_leaf_.end() ? Tier::device : away->second;
      plan_.buffers[index].size = leaf_size(leaf.type(), tier);
      plan_.buffers[index].place = {
          .space = {},
          .leaf = plan_.leaves.add({kind, node.path(), leaf.type(), value, node.id(), tier})};
    }
    return buffers_of_[leaf] = index;
  }

  Operand operand(const Tensor& tensor) const {
    const Tensor root = layouts_.root(tensor);
    return {values_of_.at(root), buffers_of_.at(root), layouts_[tensor], tensor.type()};
  }

  Port port(const Tensor& tensor, BufferId buffer) const {
    return {values_of_.at(tensor), buffer, tensor.type()};
  }

  static Instruction instruction_of(const Node& node) {
    Instruction instruction;
    instruction.op = &node.op();
    instruction.attributes = node.attributes();
    instruction.path = node.path();
    instruction.marks = node.marks();
    return instruction;
  }

  void add(Instruction instruction, const std::shared_ptr<Node>& node) {
    describe(instruction, *node);
    plan_.instructions.add(std::move(instruction));
    nodes_.push_back(node);
  }

  void add_instruction(const std::shared_ptr<Node>& node) {
    Instruction instruction = instruction_of(*node);
    for (const Tensor& input : node->inputs()) instruction.inputs.push_back(operand(input));
    if (release_ == Release::early)
      for (const InPlace& pair : node->op().in_place(node->attributes()))
        if (fits_over(*node, instruction, pair)) instruction.overwritable.push_back(pair);
    std::set<BufferId> reused;
    for (std::size_t o = 0; o < node->outputs().size(); ++o) {
      const Tensor output(node, static_cast<int>(o));
      buffers_of_[output] = output_buffer(output, instruction, reused);
      values_of_[output] = plan_.values.add({output.type(), position()});
      instruction.outputs.push_back(operand(output));
    }
    add(std::move(instruction), node);
  }

  BufferId output_buffer(const Tensor& output, const Instruction& instruction,
                         std::set<BufferId>& reused) {
    const Node& node = *output.node();
    if (const auto found = output_of_.find(output); found != output_of_.end()) {
      const BufferId index = new_buffer(node, buffer_size(output.type()), node.category());
      plan_.buffers[index].size = buffer_size(output.type());
      plan_.buffers[index].place = {.space = {}, .leaf = {}, .output = found->second};
      return index;
    }
    if (const auto found = update_of_.find(output);
        found != update_of_.end() && updates_in_place(node, instruction, found->second)) {
      settled_.insert(output);
      return add_leaf(found->second);
    }
    if (&node.op() == &store_op()) {
      const SpaceId space = space_of(node.attributes().as<TransferAttributes>().tier);
      const BufferId index = new_buffer(node, output.type().bytes(), node.category());
      plan_.buffers[index].size = round_up(output.type().bytes(), file_alignment);
      plan_.buffers[index].place.space = space;
      return index;
    }
    for (const InPlace& pair : instruction.overwritable) {
      const std::size_t input = static_cast<std::size_t>(pair.input);
      const BufferId index = instruction.inputs[input].buffer;
      if (pair.output != output.output() ||
          read_after(layouts_.root(node.inputs()[input]), position()) ||
          !reused.insert(index).second)
        continue;
      if (node.category() == Category::gradients)
        plan_.buffers[index].category = Category::gradients;
      return index;
    }
    return new_buffer(node, output.type().bytes(), node.category());
  }

  // Whether the pair's input fills a buffer in the arena, has the output's size, and is read by
  // this instruction in no other layout. If it is not read later either, the output may overwrite
  // it.
  bool fits_over(const Node& node, const Instruction& instruction, const InPlace& pair) const {
    if (pair.input >= static_cast<int>(node.inputs().size())) return false;
    const Operand& operand = instruction.inputs[static_cast<std::size_t>(pair.input)];
    const Tensor root = layouts_.root(node.inputs()[static_cast<std::size_t>(pair.input)]);
    if (update_of_.contains(root)) return false;  // may be copied into its variable at the end
    return plan_.buffers[operand.buffer].in_arena() &&
           whole_and_equal(operand, root, node.outputs()[static_cast<std::size_t>(pair.output)]) &&
           read_only_as(instruction, operand);
  }

  static bool whole_and_equal(const Operand& operand, const Tensor& root,
                              const TensorType& output) {
    return operand.type.shape == output.shape &&
           size_of(operand.type.dtype) == size_of(output.dtype) && operand.layout.offset == 0 &&
           operand.arg().contiguous() && root.type().bytes() == output.bytes();
  }

  // Whether the instruction reads the operand's buffer in this layout only.
  static bool read_only_as(const Instruction& instruction, const Operand& operand) {
    return std::all_of(instruction.inputs.begin(), instruction.inputs.end(),
                       [&](const Operand& other) {
                         return other.buffer != operand.buffer ||
                                (other.type.shape == operand.type.shape &&
                                 other.layout.offset == 0 && other.arg().contiguous());
                       });
  }

  // Whether a node may write its result directly into a variable: the old value has no later
  // reader, and if the node itself reads it, the op allows that input to be overwritten.
  bool updates_in_place(const Node& node, const Instruction& instruction, const Variable& target) {
    if (read_after(target, position())) return false;
    const BufferId own = add_leaf(target);
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

  // Sets kind of work, predicted time and workspace of an instruction.
  void describe(Instruction& instruction, const Node& node) {
    const Cost cost = cost_of(instruction, node);
    instruction.work = cost.work;
    instruction.predicted_ms =
        rates_.factor(node.op().name()) * rates_.predict_ms(cost, computed_in(node, cost.work));
    const Kernel kernel = kernel_of(plan_, instruction, Purpose::describe, tuning_);
    if (kernel.library_ms > 0.0)
      instruction.predicted_ms = kernel.library_ms + rates_.predict_ms(kernel.beside, f32);
    if (is_transfer(node.op()))
      instruction.predicted_ms =
          rates_.transfer_ms(node.attributes().as<TransferAttributes>().tier,
                             node.outputs()[0].bytes(), &node.op() == &fetch_op());
    if (is_collective(node.op())) instruction.predicted_ms += link_ms(node);
    if (kernel.workspace.count > 0)
      instruction.workspace =
          new_buffer(node, round_up(kernel.workspace, buffer_alignment), Category::workspace);
  }

  double link_ms(const Node& node) const {
    std::vector<TensorType> inputs;
    for (const Tensor& input : node.inputs()) inputs.push_back(input.type());
    const LinkUse use = link_use(node.op(), inputs, node.outputs(),
                                 node.attributes().as<CollectiveAttributes>(), node.device().kind);
    return use.exchanges > 0 ? rates_.exchange_ms(use.sent, use.exchanges) : 0.0;
  }

  Cost cost_of(const Instruction& instruction, const Node& node) const {
    std::vector<TensorType> inputs;
    for (const Tensor& input : node.inputs()) inputs.push_back(input.type());
    Cost cost = node.op().cost(inputs, node.outputs(), node.attributes());
    // A CPU loads a cache line before it writes to it, so an output that overwrites an input is not
    // counted again. A GPU writes without loading.
    if (rates_.overlaps) return cost;
    for (const Operand& output : instruction.outputs)
      if (std::any_of(instruction.inputs.begin(), instruction.inputs.end(),
                      [&](const Operand& input) { return input.buffer == output.buffer; }))
        cost.moved = std::max(Bytes{}, cost.moved - output.type.bytes());
    return cost;
  }

  // The dtype of the arithmetic. Products compute in the dtype of their factors, which may differ
  // from that of the result: the fused loss reads halves and returns float32. Codes count as the
  // result.
  static DType computed_in(const Node& node, Work work) {
    if (work != Work::elementwise && !node.inputs().empty() &&
        is_floating(node.inputs()[0].dtype()))
      return node.inputs()[0].dtype();
    return node.outputs().empty() ? f32 : node.outputs()[0].dtype;
  }

  // New values that could not be computed in place are copied into their variables at the end.
  void copy_leftover_updates() {
    for (const Update& update : graph_.updates) {
      if (settled_.contains(update.value) ||
          update.value == static_cast<const Tensor&>(update.target))
        continue;
      const auto node = contiguous(update.value).node();
      Instruction instruction = instruction_of(*node);
      instruction.inputs = {operand(update.value)};
      const BufferId target = add_leaf(update.target);
      if (plan_.tier_of(plan_.buffers[target]) != Tier::device)
        throw ValueError(fmt::format(
            "[compile] \"{}\" is outside the device, but its old value is read after its new one "
            "is made",
            update.target.path()));
      instruction.outputs = {{plan_.values.add({update.target.type(), position()}),
                              target,
                              {contiguous_strides(update.target.shape()), 0},
                              update.target.type()}};
      add(std::move(instruction), node);
    }
  }

  void finish_lifetimes() {
    const InstructionId end(std::max(0, static_cast<int>(plan_.instructions.size()) - 1));
    for (const InstructionId i : plan_.instructions.ids()) {
      const auto touch = [&](const Operand& operand) {
        Buffer& buffer = plan_.buffers[operand.buffer];
        buffer.last = std::max(buffer.last, i);
      };
      for (const Operand& operand : plan_.instructions[i].inputs) touch(operand);
      for (const Operand& operand : plan_.instructions[i].outputs) touch(operand);
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
  TuningUse tuning_;
  const Order& order_;
  LayoutMap layouts_;
  std::unordered_map<Tensor, InstructionId> last_read_;  // by root
  std::unordered_map<const Node*, Tier> tier_of_leaf_;   // of leaves outside the device
  std::unordered_map<Tensor, int> output_of_;
  std::unordered_map<Tensor, Variable> update_of_;
  std::unordered_set<Tensor> settled_;
  std::unordered_map<Tensor, BufferId> buffers_of_;
  std::unordered_map<Tensor, ValueId> values_of_;
  Plan plan_;
  std::vector<std::shared_ptr<Node>> nodes_;  // the node of each instruction
};

}  // namespace

Lowered lower(const Graph& graph, const Order& order, const PlanOptions& options) {
  return Lowering(graph, order, options).run();
}

}  // namespace ebb::planning
