#include "train/buffer_chain.h"

#include <fmt/core.h>

#include <functional>
#include <unordered_map>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/collective/collective.h"

namespace ebb {
namespace {

// An update as a function of a buffer's value and of values that a leaf contributes.
class Function {
 public:
  Function(const Tensor& buffer, const Tensor& value) : buffer_(buffer), value_(value) {
    find(value);
  }

  const std::vector<Tensor>& contributions() const { return contributions_; }

  Tensor operator()(const Tensor& previous, const std::vector<Tensor>& contributions) const {
    std::unordered_map<Tensor, Tensor> made{{buffer_, previous}};
    for (std::size_t i = 0; i < contributions.size(); ++i)
      made[contributions_[i]] = contributions[i];
    const std::function<Tensor(const Tensor&)> again = [&](const Tensor& t) {
      if (const auto found = made.find(t); found != made.end()) return found->second;
      if (!depends(t)) return t;  // a value that no single leaf contributes
      std::vector<Tensor> inputs;
      for (const Tensor& input : t.node()->inputs()) inputs.push_back(again(input));
      const std::vector<Tensor> outputs =
          apply(t.node()->op(), std::move(inputs), t.node()->attributes());
      for (std::size_t i = 0; i < outputs.size(); ++i)
        made[Tensor(t.node(), static_cast<int>(i))] = outputs[i];
      return made.at(t);
    };
    return again(value_);
  }

 private:
  // Whether a tensor depends on the buffer.
  bool depends(const Tensor& t) const {
    const auto found = depends_.find(t);
    if (found != depends_.end()) return found->second;
    bool any = t == buffer_;
    for (const Tensor& input : t.node()->inputs()) any |= depends(input);
    return depends_[t] = any;
  }

  void find(const Tensor& t) {
    if (t == buffer_) return;
    if (!depends(t)) {
      if (!t.node()->inputs().empty()) contributions_.push_back(t);
      return;
    }
    for (const Tensor& input : t.node()->inputs()) find(input);
  }

  Tensor buffer_, value_;
  mutable std::unordered_map<Tensor, bool> depends_;
  std::vector<Tensor> contributions_;
};

}  // namespace

std::vector<Update> chained_updates(const std::vector<std::vector<Update>>& leaves,
                                    const RankOptions& options, const LeafBlocks& blocks) {
  std::vector<Update> result;
  const std::int64_t own = blocks.per_rank();
  for (std::size_t b = 0; b < leaves.front().size(); ++b) {
    const Variable buffer = leaves.front()[b].target;
    const PathScope scope(buffer.node()->path(), PathScope::Kind::absolute);
    std::vector<Function> functions;
    for (const std::vector<Update>& leaf : leaves) functions.emplace_back(buffer, leaf[b].value);
    const std::size_t count = functions.front().contributions().size();
    std::vector<Tensor> gathered;  // by contribution: (leaves of all ranks, elements)
    for (std::size_t c = 0; c < count; ++c) {
      std::vector<Tensor> rows;
      for (const Function& f : functions) {
        const Tensor& t = f.contributions().at(c);
        rows.push_back(reshape(t, {t.shape().elements()}));
      }
      const std::int64_t elements = rows.front().shape()[0];
      gathered.push_back(
          all_gather(concat(rows, 0), {options.count * own, elements}, options.count));
    }
    Tensor value = buffer;
    for (std::int64_t leaf = 0; leaf < blocks.leaves; ++leaf) {
      const LeafBlocks::Seat seat = blocks.seat(leaf);
      const std::int64_t row = seat.rank * own + seat.place;
      const Function& f = functions[static_cast<std::size_t>(seat.place)];
      std::vector<Tensor> contributions;
      for (std::size_t c = 0; c < count; ++c)
        contributions.push_back(
            reshape(slice(gathered[c], 0, row, row + 1), f.contributions()[c].shape()));
      value = f(value, contributions);
    }
    result.push_back({buffer, value});
  }
  return result;
}

}  // namespace ebb
