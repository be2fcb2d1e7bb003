#include "runtime/resident.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace ebb {
namespace {

using resident::Step;
using resident::Task;

struct Range {
  const std::byte *begin, *end;

  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

// The bytes that a kernel reads and writes.
struct Access {
  std::vector<Range> reads, writes;

  // Whether one of two kernels writes what the other reads or writes.
  bool conflicts(const Access& other) const {
    return meet(writes, other.writes) || meet(writes, other.reads) || meet(reads, other.writes);
  }
  void add(const Access& other) {
    reads.insert(reads.end(), other.reads.begin(), other.reads.end());
    writes.insert(writes.end(), other.writes.begin(), other.writes.end());
  }
  static bool meet(const std::vector<Range>& a, const std::vector<Range>& b) {
    return std::any_of(a.begin(), a.end(), [&](const Range& x) {
      return std::any_of(b.begin(), b.end(), [&](const Range& y) { return x.meets(y); });
    });
  }
};

// Rows that a task computes, and that a product can instead compute while it reads them.
struct MadeRows {
  resident::Rows rows;
  std::int32_t count, columns;
};
std::optional<MadeRows> rows_made_by(const Task& task) {
  if (const auto* norm = std::get_if<resident::Norm>(&task))
    return MadeRows{{.x = norm->x,
                     .weight = norm->weight,
                     .bias = norm->bias,
                     .eps = norm->eps,
                     .stride = norm->columns,
                     .form = norm->means ? resident::Form::layer_norm : resident::Form::rms_norm},
                    norm->count,
                    norm->columns};
  if (const auto* elementwise = std::get_if<resident::Elementwise>(&task))
    return MadeRows{elementwise->rows, elementwise->count, elementwise->columns};
  return {};
}

// An instruction inside a chain.
struct Link {
  InstructionId instruction;
  std::optional<Task> task;  // none: another task of the chain does its work
  Access access;
  int level = 0;  // those of one level do not depend on each other
};

class Chains {
 public:
  Chains(const Plan& plan, std::span<const Kernel> kernels, std::span<const KernelArgs> args)
      : plan_(plan), kernels_(kernels), args_(args), awaited_(plan.instructions.size()) {
    for (const InstructionId i : plan.instructions.ids()) {
      for (const Operand& operand : plan.instructions[i].inputs)
        readers_[operand.value.index()].push_back(i);
      for (const InstructionId other : plan.instructions[i].waits) awaited_[other.index()] = true;
    }
    for (const Port& port : plan.outputs) readers_[port.value.index()].push_back({});
  }

  std::vector<Launched> launches(const std::vector<bool>& alone) {
    for (const InstructionId i : plan_.instructions.ids()) {
      if (!alone[i.index()] && extend(i)) continue;
      // An instruction that does not need the open chain is launched before it, unless another lane
      // waits for it: such a wait stands for all instructions before it, too.
      Access access = access_of(i);
      const bool before = !alone[i.index()] && !awaited_[i.index()] &&
                          std::none_of(chain_.begin(), chain_.end(), [&](const Link& link) {
                            return link.access.conflicts(access);
                          });
      if (!before) close();
      launched_.push_back({.instructions = {i}});
    }
    close();
    return std::move(launched_);
  }

 private:
  const Step* step_of(InstructionId i) const { return kernels_[i.index()].run.target<Step>(); }

  Access access_of(InstructionId i) const {
    const Instruction& instruction = plan_.instructions[i];
    const KernelArgs& a = args_[i.index()];
    Access access;
    const auto add = [](std::vector<Range>& to, const std::byte* begin, const Operand& operand) {
      if (!begin) return;
      std::int64_t extent = 1;  // elements from the first to the last
      for (int k = 0; k < operand.type.shape.rank(); ++k) {
        if (operand.type.shape[k] == 0) return;
        extent += (operand.type.shape[k] - 1) * operand.layout.strides[k];
      }
      to.push_back({begin, begin + extent * size_of(operand.type.dtype).count});
    };
    for (std::size_t k = 0; k < instruction.inputs.size(); ++k)
      add(access.reads, a.inputs[k], instruction.inputs[k]);
    for (std::size_t k = 0; k < instruction.outputs.size(); ++k)
      add(access.writes, a.outputs[k], instruction.outputs[k]);
    if (instruction.workspace && a.workspace)
      access.writes.push_back(
          {a.workspace, a.workspace + plan_.buffers[instruction.workspace].size.count});
    return access;
  }

  // Adds an instruction to the open chain, if a resident kernel can run it there.
  bool extend(InstructionId i) {
    const Step* step = step_of(i);
    if (!step || (!chain_.empty() && step_of(chain_.front().instruction)->dtype != step->dtype))
      return false;
    if (!step->task) return false;
    std::optional<Task> task = step->task(args_[i.index()]);
    if (!task) return false;
    Access access = access_of(i);
    if (std::holds_alternative<resident::Product>(*task) && writes_matrix(access, i)) close();
    chain_.push_back({i, std::move(task), std::move(access)});
    return true;
  }

  // Whether the open chain writes the matrix of this product. A resident kernel reads matrices from
  // its beginning on, so that they must be complete before it.
  bool writes_matrix(const Access& product, InstructionId i) const {
    std::vector<Range> matrix;
    for (const Range& read : product.reads)
      if (read.begin == args_[i.index()].inputs[1]) matrix.push_back(read);
    return std::any_of(chain_.begin(), chain_.end(),
                       [&](const Link& link) { return Access::meet(link.access.writes, matrix); });
  }

  // If only products of the chain read some rows, and nothing in between changes the rows' inputs,
  // these products compute the rows themselves.
  void absorb_rows(std::size_t at) {
    Link& maker = chain_[at];
    const std::optional<MadeRows> made = rows_made_by(*maker.task);
    const Instruction& instruction = plan_.instructions[maker.instruction];
    const Operand& result = instruction.outputs[0];
    if (!made || !plan_.buffers[result.buffer].in_arena()) return;
    for (std::size_t k = 1; k < instruction.outputs.size(); ++k)
      if (readers_.contains(instruction.outputs[k].value.index())) return;
    const auto readers = readers_.find(result.value.index());
    if (readers == readers_.end()) return;
    const void* address = args_[maker.instruction.index()].outputs[0];
    std::vector<std::size_t> products;
    for (const InstructionId reader : readers->second) {
      const std::size_t found = link_of(reader, at);
      if (found == chain_.size() || !reads_just(chain_[found], *made, address)) return;
      products.push_back(found);
    }
    const std::size_t last = *std::max_element(products.begin(), products.end());
    for (std::size_t k = at + 1; k <= last; ++k)
      if (Access::meet(chain_[k].access.writes, maker.access.reads)) return;
    for (const std::size_t product : products) {
      std::get<resident::Product>(*chain_[product].task).rows = made->rows;
      std::vector<Range>& reads = chain_[product].access.reads;
      std::erase_if(reads, [&](const Range& range) { return range.begin == address; });
      reads.insert(reads.end(), maker.access.reads.begin(), maker.access.reads.end());
    }
    maker.task.reset();
    maker.access = {};
  }

  // The index of an instruction in the chain, after `from`; the chain's length if it is not there.
  std::size_t link_of(InstructionId instruction, std::size_t from) const {
    for (std::size_t k = from; instruction && k < chain_.size(); ++k)
      if (chain_[k].instruction.index() == instruction.index()) return k;
    return chain_.size();
  }

  // Whether a link is a product whose rows are at this address and that reads these bytes only as
  // its rows.
  static bool reads_just(const Link& link, const MadeRows& made, const void* address) {
    const auto* product = link.task ? std::get_if<resident::Product>(&*link.task) : nullptr;
    return product && product->rows.form == resident::Form::plain && !product->rows.second &&
           product->rows.x == address && made.count == 1 && product->inner == made.columns &&
           product->other != address && product->bias != address && product->matrix != address;
  }

  // New keys and values are written to the cache by the attention that reads it.
  void absorb_writing(std::size_t at) {
    const auto* writing = std::get_if<resident::CacheWriting>(&*chain_[at].task);
    for (std::size_t k = at + 1; writing && k < chain_.size(); ++k) {
      if (!chain_[k].task) continue;
      auto* attention = std::get_if<resident::Attention>(&*chain_[k].task);
      if (!attention || attention->keys != writing->keys || attention->values != writing->values ||
          attention->positions != writing->positions || attention->rows != writing->rows ||
          attention->batches != writing->batches || attention->kv_heads != writing->heads) {
        if (chain_[k].access.conflicts(chain_[at].access)) return;
        continue;
      }
      // The attention's own results must not overlap the new keys and values.
      if (Access::meet(chain_[k].access.writes, chain_[at].access.reads)) return;
      attention->k = writing->k, attention->v = writing->v;
      attention->k_batch = writing->k_batch, attention->k_head = writing->k_head;
      attention->v_batch = writing->v_batch, attention->v_head = writing->v_head;
      chain_[k].access.add(chain_[at].access);
      chain_[at].task.reset();
      chain_[at].access = {};
      return;
    }
  }

  // Ends the open chain.
  void close() {
    const auto products = std::count_if(chain_.begin(), chain_.end(), [](const Link& link) {
      return std::holds_alternative<resident::Product>(*link.task);
    });
    if (products < 2) {
      for (const Link& link : chain_) launched_.push_back({.instructions = {link.instruction}});
      chain_.clear();
      return;
    }
    for (std::size_t k = 0; k < chain_.size(); ++k) absorb_rows(k);
    for (std::size_t k = 0; k < chain_.size(); ++k)
      if (chain_[k].task) absorb_writing(k);
    launched_.push_back(in_levels());
    chain_.clear();
  }

  static bool attends(const Link& link) {
    return link.task && std::holds_alternative<resident::Attention>(*link.task);
  }

  // Whether a link must wait for an earlier one. Two attentions never run side by side: they count
  // their pieces in the same place.
  static bool waits_for(const Link& later, const Link& earlier) {
    return earlier.access.conflicts(later.access) || (attends(earlier) && attends(later));
  }

  // The tasks in an order in which as few as possible wait for earlier ones.
  Launched in_levels() {
    int levels = 0;
    for (std::size_t k = 0; k < chain_.size(); ++k) {
      for (std::size_t j = 0; j < k; ++j)
        if (chain_[j].level >= chain_[k].level && waits_for(chain_[k], chain_[j]))
          chain_[k].level = chain_[j].level + 1;
      levels = std::max(levels, chain_[k].level + 1);
    }
    const Step& step = *step_of(chain_.front().instruction);
    Launched result{.launch = step.launch, .dtype = step.dtype};
    for (const Link& link : chain_) result.instructions.push_back(link.instruction);
    for (int level = 0; level < levels; ++level) {
      bool waits = level > 0;
      for (Link& link : chain_)
        if (link.task && link.level == level)
          result.tasks.push_back({std::move(*link.task), std::exchange(waits, false)});
    }
    return result;
  }

  const Plan& plan_;
  std::span<const Kernel> kernels_;
  std::span<const KernelArgs> args_;
  std::map<std::size_t, std::vector<InstructionId>> readers_;  // by value; none for an output
  std::vector<bool> awaited_;  // by instruction: whether one of another lane waits for it
  std::vector<Link> chain_;    // the open one
  std::vector<Launched> launched_;
};

}  // namespace

std::vector<Launched> launches_of(const Plan& plan, std::span<const Kernel> kernels,
                                  std::span<const KernelArgs> args,
                                  const std::vector<bool>& alone) {
  return Chains(plan, kernels, args).launches(alone);
}

}  // namespace ebb
