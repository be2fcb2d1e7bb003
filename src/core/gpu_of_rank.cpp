#include "core/gpu_of_rank.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "core/json.h"
#include "ebb/communicator.h"

namespace ebb {

std::string text_of(const GpuOfRank& gpu) {
  return json_text(nlohmann::ordered_json{{"problem", gpu.problem},
                                          {"host", gpu.host},
                                          {"machine", gpu.machine},
                                          {"bus", gpu.bus},
                                          {"device", gpu.device},
                                          {"nccl_host", gpu.nccl_host},
                                          {"nccl_version", gpu.nccl_version}});
}

GpuOfRank gpu_of_rank(std::string_view text) {
  const nlohmann::json fields = parse_json(text);
  const auto word = [&](const char* name) { return fields.at(name).get<std::string>(); };
  return {.problem = word("problem"),
          .host = word("host"),
          .machine = word("machine"),
          .bus = word("bus"),
          .device = word("device"),
          .nccl_host = word("nccl_host"),
          .nccl_version = fields.at("nccl_version").get<int>()};
}

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void require_gpus_for_all(const std::vector<GpuOfRank>& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (!ranks[r].problem.empty())
      throw RankError(static_cast<int>(r),
                      fmt::format("rank {} on {} cannot exchange bytes between GPUs: {}", r,
                                  ranks[r].host, ranks[r].problem));
  for (std::size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].nccl_version != ranks[0].nccl_version)
      throw RankError(
          static_cast<int>(r),
          fmt::format("rank {} on {} has NCCL {}, but rank 0 on {} has NCCL {}; all ranks need the "
                      "same version",
                      r, ranks[r].host, nccl_version_text(ranks[r].nccl_version), ranks[0].host,
                      nccl_version_text(ranks[0].nccl_version)));
  for (std::size_t r = 1; r < ranks.size(); ++r)
    for (std::size_t other = 0; other < r; ++other) {
      const GpuOfRank &a = ranks[other], &b = ranks[r];
      if (a.machine != b.machine || a.bus != b.bus || a.nccl_host != b.nccl_host) continue;
      throw RankError(
          static_cast<int>(r),
          fmt::format(
              "ranks {} and {} use the same GPU of {}: {} at {}. NCCL needs a GPU for each "
              "rank: start fewer ranks on this host, or show it more GPUs "
              "(CUDA_VISIBLE_DEVICES). For tests, `ebb launch --share-gpu` lets ranks share "
              "one",
              other, r, b.host, b.device, b.bus));
    }
}

}  // namespace ebb
