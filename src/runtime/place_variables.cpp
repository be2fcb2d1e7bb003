#include "runtime/place_variables.h"

#include <fmt/core.h>

#include "core/tier_block.h"
#include "ebb/error.h"
#include "ebb/program.h"

namespace ebb {
namespace {

// Copies the value, or the initial value, of a variable. Its old memory is released.
void move_into(Node& node, const std::shared_ptr<Storage>& storage, std::uint64_t seed) {
  if (!node.storage()) {
    if (!node.initial())
      throw Error(
          fmt::format("variable \"{}\" has neither a value nor an initial one", node.path()));
    node.set_storage(eval(node.initial(), seed).node()->storage());
    node.set_initial({});
  }
  const Storage& from = *node.storage();
  const auto size = static_cast<std::size_t>(node.outputs()[0].bytes().count);
  if (from.on_host()) {
    storage->write({from.data(), size});
  } else {
    std::vector<std::byte> bytes(size);
    from.read(bytes);
    storage->write(bytes);
  }
  node.set_storage(storage);
}

}  // namespace

void place_in(Tier tier, Device device, const Leaves& variables, std::uint64_t seed,
              const std::filesystem::path& folder) {
  const auto size_of_node = [&](const std::shared_ptr<Node>& node) {
    return leaf_size(node->outputs()[0], tier);
  };
  Bytes total, offset;
  for (const auto& node : variables) total += size_of_node(node);
  if (total == Bytes{}) return;
  const auto block = TierBlock::allocate(tier, device, total, folder);
  for (const auto& node : variables) {
    move_into(*node, part_of(block, device, offset, size_of_node(node)), seed);
    node->set_tier(tier);
    offset += size_of_node(node);
  }
}

void place_variables(const Plan& plan, const Leaves& leaves, std::uint64_t seed,
                     const std::filesystem::path& folder) {
  const auto lies_elsewhere = [&](LeafId l) {
    const Node& node = *leaves[l.index()];
    const Tier now = node.storage() ? node.storage()->tier() : Tier::device;
    if (plan.leaves[l].tier == Tier::device && now != Tier::device)
      throw ValueError(
          fmt::format("[compile] the plan has \"{}\" on the device, but it is in the "
                      "tier {} of another program",
                      node.path(), name(now)));
    return plan.leaves[l].tier != now;
  };
  for (const Tier tier : {Tier::host, Tier::disk}) {
    Leaves to_move;
    for (const LeafId l : plan.leaves.ids())
      if (plan.leaves[l].tier == tier && lies_elsewhere(l)) to_move.push_back(leaves[l.index()]);
    place_in(tier, plan.device, to_move, seed, folder);
  }
  for (const LeafId l : plan.leaves.ids()) {
    if (plan.leaves[l].kind != Leaf::Kind::variable) continue;
    (void)lies_elsewhere(l);
    leaves[l.index()]->set_tier(plan.leaves[l].tier);
  }
}

}  // namespace ebb
