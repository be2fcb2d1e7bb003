#include "plan/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "ebb/error.h"
#include "ebb/storage.h"
#include "ops/transfer/transfer.h"
#include "plan/request.h"

namespace ebb {
namespace {

[[noreturn]] void fail(const std::string& what) { throw ValueError("[plan] " + what); }

// Follows a plan instruction by instruction, with the value that every buffer holds.
class Check {
 public:
  explicit Check(const Plan& plan) : plan_(plan), held_(plan.buffers.size()) {}

  void run() {
    tables();
    for (const InstructionId i : plan_.instructions.ids()) instruction(i);
    for (std::size_t o = 0; o < plan_.outputs.size(); ++o)
      if (held(plan_.outputs[o].buffer) != plan_.outputs[o].value)
        fail(fmt::format("output {} does not hold its value at the end", o));
    apart();
    lanes();
  }

 private:
  const Buffer& buffer(BufferId id) const { return plan_.buffers[id]; }
  ValueId& held(BufferId id) { return held_[id.index()]; }

  std::string place(InstructionId i) const {
    const Instruction& instruction = plan_.instructions[i];
    return fmt::format("instruction {} ({}{})", i.number(), instruction.op->name(),
                       instruction.path.empty() ? "" : fmt::format(" at {}", instruction.path));
  }

  void tables() {
    if (plan_.lanes.empty()) fail("there is no lane");
    if (plan_.spaces.empty()) fail("there is no space");
    for (const SpaceId s : plan_.spaces.ids()) {
      const Space& space = plan_.spaces[s];
      if ((s == arena_space) != (space.tier == Tier::device))
        fail(fmt::format("space {} is in the tier {}", s.number(), name(space.tier)));
      if (space.alignment != file_alignment &&
          (s != arena_space || space.alignment != buffer_alignment))
        fail(fmt::format("space {} is aligned to {} bytes", s.number(), space.alignment.count));
    }
    std::vector<int> owners(plan_.leaves.size()), results(plan_.outputs.size());
    std::vector<Bytes> ends(plan_.spaces.size());  // largest end of a buffer in each space
    for (const BufferId b : plan_.buffers.ids()) {
      const Buffer& each = buffer(b);
      const std::string name = fmt::format("buffer {}", b.number());
      if (each.place.space) {
        const Bytes alignment = plan_.spaces[each.place.space].alignment;
        if (each.place.offset.count % alignment.count != 0 ||
            each.size.count % alignment.count != 0)
          fail(name + " is not aligned");
        if (each.place.offset + each.size > plan_.spaces[each.place.space].size)
          fail(name + " reaches past the end of its space");
        Bytes& end = ends[each.place.space.index()];
        end = std::max(end, each.place.offset + each.size);
        if (each.first > each.last) fail(name + " ends before it begins");
      } else if (each.place.leaf) {
        const Leaf& leaf = plan_.leaves[each.place.leaf];
        if (each.size != leaf_size(leaf.type, leaf.tier))
          fail(fmt::format("{} is not as large as \"{}\"", name, leaf.path));
        if (++owners[each.place.leaf.index()] > 1)
          fail(fmt::format("\"{}\" has two buffers", leaf.path));
        set(b, leaf.value, leaf.type, fmt::format("\"{}\"", leaf.path));
      } else {
        const std::size_t output = static_cast<std::size_t>(each.place.output);
        if (output >= results.size()) fail(name + " belongs to no output");
        if (++results[output] > 1) fail(fmt::format("output {} has two buffers", output));
      }
    }
    for (const SpaceId s : plan_.spaces.ids())
      if (plan_.spaces[s].size !=
          (s == arena_space
               ? Storage::reservation(plan_.device, ends[s.index()], plan_.spaces[s].pages)
               : round_up(ends[s.index()], file_alignment)))
        fail(fmt::format("space {} is larger than its buffers", s.number()));
    for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
      const Port& input = plan_.inputs[i];
      const std::string name = fmt::format("input {}", i);
      if (!buffer(input.buffer).in_arena() || buffer(input.buffer).first != InstructionId(0))
        fail(name + " is not there when the step begins");
      if (buffer(input.buffer).size < input.type.bytes()) fail(name + " is larger than its buffer");
      if (held(input.buffer)) fail(name + " shares its buffer with another");
      set(input.buffer, input.value, input.type, name);
    }
    for (std::size_t o = 0; o < plan_.outputs.size(); ++o) {
      const Port& output = plan_.outputs[o];
      const Value& value = plan_.values[output.value];
      if (buffer(output.buffer).place.output != static_cast<int>(o))
        fail(fmt::format("output {} does not lie in a buffer of its own", o));
      if (value.type != output.type || buffer(output.buffer).size < output.type.bytes())
        fail(fmt::format("output {} is not of its type", o));
    }
  }

  // Sets the value that a buffer holds when the step begins.
  void set(BufferId id, ValueId value, const TensorType& type, const std::string& name) {
    if (plan_.values[value].maker || plan_.values[value].type != type)
      fail(name + " must have a value of its own type that no instruction makes");
    if (!made_.insert(value.number()).second) fail(name + " shares its value with another");
    held(id) = value;
  }

  void operand(const Operand& o, InstructionId at, const char* what) const {
    const Buffer& b = buffer(o.buffer);
    if (b.place.space && (at < b.first || at > b.last))
      fail(fmt::format("{} uses buffer {} outside its life", place(at), o.buffer.number()));
    if (o.layout.strides.size() != o.type.shape.rank())
      fail(fmt::format("{}: an {} of rank {} has {} strides", place(at), what, o.type.shape.rank(),
                       o.layout.strides.size()));
    if (o.type.shape.elements() == 0) return;
    // In floating point, since int64 could overflow: the sums are of products below 2^104.
    double last = static_cast<double>(o.layout.offset);
    for (int i = 0; i < o.type.shape.rank(); ++i)
      last += static_cast<double>(o.type.shape[i] - 1) * static_cast<double>(o.layout.strides[i]);
    if ((last + 1) * static_cast<double>(size_of(o.type.dtype).count) >
        static_cast<double>(b.size.count))
      fail(fmt::format("{}: an {} reaches past the end of its buffer", place(at), what));
  }

  void instruction(InstructionId i) {
    const Instruction& instruction = plan_.instructions[i];
    std::vector<TensorType> types;
    for (std::size_t k = 0; k < instruction.inputs.size(); ++k) {
      const Operand& input = instruction.inputs[k];
      operand(input, i, "input");
      if (held(input.buffer) != input.value)
        fail(fmt::format("{}: input {} is value {}, which buffer {} does not hold then", place(i),
                         k, input.value.number(), input.buffer.number()));
      if (!instruction.op->accepts(input.arg(), static_cast<int>(k), instruction.attributes))
        fail(fmt::format("{} cannot read input {} as it lies", place(i), k));
      types.push_back(input.type);
    }
    outputs(i, instruction, types);
    tiers(i, instruction);
    scratch(i, instruction);
    for (const Operand& output : instruction.outputs) write(output.buffer, output.value);
    for (const InstructionId other : instruction.waits)
      if (other >= i) fail(place(i) + " waits for what comes later");
  }

  void outputs(InstructionId i, const Instruction& instruction,
               const std::vector<TensorType>& types) {
    const std::vector<TensorType> inferred = instruction.op->infer(
        {*instruction.op, types, plan_.device, instruction.path}, instruction.attributes);
    if (instruction.op->is_view() || inferred.size() != instruction.outputs.size())
      fail(fmt::format("{} has {} outputs, not {}", place(i), inferred.size(),
                       instruction.outputs.size()));
    for (std::size_t o = 0; o < inferred.size(); ++o) {
      const Operand& output = instruction.outputs[o];
      const Value& value = plan_.values[output.value];
      operand(output, i, "output");
      if (output.type != inferred[o] || value.type != inferred[o])
        fail(fmt::format("{}: output {} is {}, not {}", place(i), o, to_string(inferred[o]),
                         to_string(output.type)));
      if (output.layout.offset != 0 || !output.arg().contiguous())
        fail(fmt::format("{}: output {} does not lie in one piece", place(i), o));
      if (value.maker != i || !made_.insert(output.value.number()).second)
        fail(fmt::format("{}: output {} is a value that something else makes", place(i), o));
      if (const LeafId leaf = buffer(output.buffer).place.leaf;
          leaf && (plan_.leaves[leaf].kind == Leaf::Kind::constant ||
                   plan_.leaves[leaf].type != output.type))
        fail(fmt::format("{}: output {} cannot be written into \"{}\"", place(i), o,
                         plan_.leaves[leaf].path));
      for (std::size_t other = 0; other < o; ++other)
        if (instruction.outputs[other].buffer == output.buffer)
          fail(fmt::format("{}: outputs {} and {} share a buffer", place(i), other, o));
      for (std::size_t k = 0; k < instruction.inputs.size(); ++k)
        if (instruction.inputs[k].buffer == output.buffer && !in_place(instruction, o, k))
          fail(fmt::format("{}: output {} would be written over input {}", place(i), o, k));
    }
  }

  // Only copies use other tiers than the device, each in a lane of its kind.
  void tiers(InstructionId i, const Instruction& instruction) const {
    const auto require = [&](const std::vector<Operand>& operands, Tier tier) {
      for (const Operand& o : operands)
        if (plan_.tier_of(buffer(o.buffer)) != tier)
          fail(fmt::format("{} has an operand in the tier {}, not {}", place(i),
                           name(plan_.tier_of(buffer(o.buffer))), name(tier)));
    };
    const Lane::Kind lane = plan_.lanes[instruction.lane].kind;
    const bool fetch = instruction.op == &fetch_op();
    if (!is_transfer(*instruction.op)) {
      require(instruction.inputs, Tier::device), require(instruction.outputs, Tier::device);
      if (lane == Lane::Kind::store || lane == Lane::Kind::fetch)
        fail(place(i) + " is in a lane of copies");
      return;
    }
    const Tier tier = instruction.attributes.as<TransferAttributes>().tier;
    if (tier == Tier::device) fail(place(i) + " copies within the device");
    require(instruction.inputs, fetch ? tier : Tier::device);
    require(instruction.outputs, fetch ? Tier::device : tier);
    if (lane != (fetch ? Lane::Kind::fetch : Lane::Kind::store))
      fail(place(i) + " is not in a lane of its kind");
    const Operand& here = fetch ? instruction.outputs[0] : instruction.inputs[0];
    const Operand& there = fetch ? instruction.inputs[0] : instruction.outputs[0];
    if (!buffer(here.buffer).in_arena() || here.layout.offset != 0 || there.layout.offset != 0 ||
        buffer(here.buffer).size < round_up(here.type.bytes(), plan_.spaces[arena_space].alignment))
      fail(place(i) + " does not copy a whole buffer of the arena");
    if (tier == Tier::disk && plan_.spaces[arena_space].alignment != file_alignment)
      fail(place(i) + " copies to a file from memory that is not aligned for it");
  }

  // Whether output o may overwrite input k, which is in the same buffer.
  static bool in_place(const Instruction& instruction, std::size_t o, std::size_t k) {
    const Operand &in = instruction.inputs[k], &out = instruction.outputs[o];
    const std::vector<InPlace> pairs = instruction.op->in_place(instruction.attributes);
    return std::any_of(pairs.begin(), pairs.end(),
                       [&](const InPlace& p) {
                         return p.output == static_cast<int>(o) && p.input == static_cast<int>(k);
                       }) &&
           in.type.shape == out.type.shape && size_of(in.type.dtype) == size_of(out.type.dtype) &&
           in.layout.offset == 0 && in.arg().contiguous();
  }

  void scratch(InstructionId i, const Instruction& instruction) {
    const Bytes needed = kernel_of(plan_, instruction, Purpose::describe, tuning_).workspace;
    const BufferId own = instruction.workspace;
    if (!own) {
      if (needed.count > 0)
        fail(fmt::format("{} needs a workspace of {} bytes on this machine, but has none", place(i),
                         needed.count));
      return;
    }
    const Buffer& b = buffer(own);
    if (!b.in_arena() || i < b.first || i > b.last)
      fail(place(i) + ": its workspace is not free then");
    if (b.size < needed)
      fail(fmt::format("{} needs a workspace of {} bytes on this machine, but has {}", place(i),
                       needed.count, b.size.count));
    for (const auto* operands : {&instruction.inputs, &instruction.outputs})
      for (const Operand& o : *operands)
        if (o.buffer == own) fail(place(i) + ": its workspace holds an operand");
    write(own, {});
  }

  // No other buffer's value is lost, because buffers that are live at once do not overlap
  // (apart()).
  void write(BufferId id, ValueId value) { held(id) = value; }

  // Checks that no two buffers overlap while both are live.
  void apart() const {
    std::vector<BufferId> by_begin;
    for (const BufferId b : plan_.buffers.ids())
      if (buffer(b).place.space && buffer(b).size.count > 0) by_begin.push_back(b);
    std::stable_sort(by_begin.begin(), by_begin.end(),
                     [&](BufferId a, BufferId b) { return buffer(a).first < buffer(b).first; });
    std::map<std::pair<SpaceId, std::int64_t>, BufferId> live;  // by space and offset
    for (const BufferId b : by_begin) {
      const Buffer& own = buffer(b);
      std::erase_if(live, [&](const auto& entry) { return buffer(entry.second).last < own.first; });
      const auto [at, is_new] = live.emplace(std::pair(own.place.space, own.place.offset.count), b);
      const auto next = std::next(at);
      if (!is_new || (next != live.end() && share_bytes(own, buffer(next->second))) ||
          (at != live.begin() && share_bytes(own, buffer(std::prev(at)->second))))
        fail(fmt::format("buffer {} overlaps another that is live at the same time", b.number()));
    }
  }

  // Checks that instructions which access the same bytes, at least one of them writing, are ordered
  // by their lanes and waits.
  void lanes() const {
    if (plan_.lanes.size() == 1) return;
    const std::size_t count = plan_.lanes.size();
    // For every instruction and lane: the last instruction of that lane that is known to have ended
    // when the instruction begins.
    std::vector<std::vector<InstructionId>> ended(plan_.instructions.size());
    std::vector<InstructionId> newest(count);
    for (const InstructionId i : plan_.instructions.ids()) {
      const Instruction& instruction = plan_.instructions[i];
      std::vector<InstructionId>& known = ended[i.index()];
      known.resize(count);
      const auto join = [&](InstructionId other) {
        for (std::size_t l = 0; l < count; ++l)
          known[l] = std::max(known[l], ended[other.index()][l]);
        InstructionId& lane = known[plan_.instructions[other].lane.index()];
        lane = std::max(lane, other);
      };
      if (newest[instruction.lane.index()]) join(newest[instruction.lane.index()]);
      for (const InstructionId other : instruction.waits) join(other);
      newest[instruction.lane.index()] = i;
      for (InstructionId before(0); before < i; ++before)
        if (before > known[plan_.instructions[before].lane.index()] && conflict(before, i))
          fail(fmt::format("{} does not wait for {}", place(i), place(before)));
    }
  }

  bool conflict(InstructionId a, InstructionId b) const {
    const auto touches = [&](BufferId x, BufferId y) {
      return x == y || share_bytes(buffer(x), buffer(y));
    };
    const auto writes_what_uses = [&](const Instruction& writer, const Instruction& user) {
      const auto hits = [&](BufferId written) {
        for (const auto* operands : {&user.inputs, &user.outputs})
          for (const Operand& o : *operands)
            if (touches(written, o.buffer)) return true;
        return user.workspace && touches(written, user.workspace);
      };
      return (writer.workspace && hits(writer.workspace)) ||
             std::any_of(writer.outputs.begin(), writer.outputs.end(),
                         [&](const Operand& o) { return hits(o.buffer); });
    };
    const Instruction &first = plan_.instructions[a], &second = plan_.instructions[b];
    return writes_what_uses(first, second) || writes_what_uses(second, first);
  }

  const Plan& plan_;
  TuningUse tuning_{plan_.tuning};
  std::vector<ValueId> held_;              // the value that every buffer holds now
  std::unordered_set<std::int32_t> made_;  // numbers of the values that exist so far
};

}  // namespace

void check_plan(const Plan& plan) { Check(plan).run(); }

}  // namespace ebb
