#include <fmt/core.h>

#include <map>
#include <mutex>
#include <string>

#include "core/backend.h"
#include "core/disk_cache.h"
#include "ebb/error.h"
#include "ebb/probe.h"
#include "plan/lower.h"
#include "plan/request.h"
#include "plan/schedule.h"

namespace ebb {
namespace {

// The tunings of this process by device. Each starts from the disk cache and grows with every
// `tune`.
class Tunings {
 public:
  std::shared_ptr<const Tuning> of(Device device) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Tuning>& own = by_device_[to_string(device)];
    if (!own) own = std::make_shared<const Tuning>(load(backend_of(device).name(device)));
    return own;
  }

  std::shared_ptr<const Tuning> grow(Device device, const Tuning& found) {
    of(device);
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Tuning>& own = by_device_[to_string(device)];
    Tuning grown = *own;
    grown.take(found);
    cache(grown.device).write(tuning_text(grown));
    return own = std::make_shared<const Tuning>(std::move(grown));
  }

 private:
  static DiskCache cache(const std::string& device) { return {"tuning", device}; }

  static Tuning load(const std::string& device) {
    if (const auto text = cache(device).read()) {
      try {
        return parse_tuning(*text, "the cached tuning");
      } catch (const Error&) {  // damaged, or written by another version of ebb: start anew
      }
    }
    return {.device = device, .libraries = {}};
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Tuning>> by_device_;
};

Tunings& tunings() {
  static auto& all = *new Tunings;
  return all;
}

}  // namespace

std::shared_ptr<const Tuning> known_tuning(Device device) {
  backend_of(device).require(device);
  return tunings().of(device);
}

std::shared_ptr<const Tuning> tune(const Graph& graph, const PlanOptions& options,
                                   const std::function<void(const std::string&)>& tell) {
  const planning::Lowered lowered =
      planning::lower(graph, planning::schedule(graph, options.updates), options);
  const Device device = lowered.plan.device;
  const std::shared_ptr<const Tuning> known = known_tuning(device);
  TuningUse use(*known, [&] {
    if (tell)
      tell(fmt::format("choosing algorithms of the libraries for this step on {}, once",
                       known->device));
  });
  for (const Instruction& instruction : lowered.plan.instructions)
    kernel_of(lowered.plan, instruction, Purpose::tune, use);
  return use.added() > 0 ? tunings().grow(device, use.used()) : known;
}

}  // namespace ebb
