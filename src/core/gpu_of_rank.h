// Which GPU each rank of a run uses, and whether NCCL can connect them: NCCL needs one GPU per rank
// and the same version on all ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ebb {

struct GpuOfRank {
  std::string problem;    // why this rank cannot use NCCL; empty: it can
  std::string host;       // its name, for people
  std::string machine;    // the same for all processes of one running machine
  std::string bus;        // the GPU's place in that machine
  std::string device;     // "cuda:1", as the process sees it
  std::string nccl_host;  // the variable NCCL_HOSTID, by which NCCL tells machines apart
  int nccl_version = 0;   // as NCCL counts: 22809 is 2.28.9
};

std::string text_of(const GpuOfRank& gpu);
GpuOfRank gpu_of_rank(std::string_view text);  // of that text

// The version as people write it.
std::string nccl_version_text(int version);

// A RankError names the ranks that cannot work together, the same on every rank.
void require_gpus_for_all(const std::vector<GpuOfRank>& ranks);

}  // namespace ebb
