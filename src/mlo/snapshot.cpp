#include "mlo/snapshot.h"

#include "ebb/node.h"
#include "ebb/ops.h"

namespace ebb::mlo {

Variable Snapshot::copy_of(const Variable& live) {
  const auto [found, missing] = copies_.try_emplace(live);
  if (missing) {
    const TraceScope scope("snapshot." + std::string(live.path()));
    found->second = Variable(zeros(live.shape(), live.dtype(), live.device()), Category::optimizer);
  }
  return found->second;
}

void Snapshot::run(Copying& copying, const std::vector<Variable>& live, Direction direction) {
  if (!copying.program || copying.live != live) {
    Graph graph;
    for (const Variable& variable : live) {
      const Variable copy = copy_of(variable);
      if (direction == Direction::save)
        graph.updates.push_back({copy, variable});
      else
        graph.updates.push_back({variable, copy});
    }
    copying = {live, std::make_unique<Program>(graph, compile_)};
  }
  copying.program->run();
}

void Snapshot::take(const std::vector<Variable>& live) { run(save_, live, Direction::save); }
void Snapshot::restore(const std::vector<Variable>& live) { run(load_, live, Direction::load); }

}  // namespace ebb::mlo
