// The folder a run keeps its checkpoints in.
//
//   checkpoint.safetensors      the newest
//   step-00000100.safetensors   with more than one kept, the last of them, with the newest
//   best.safetensors            with more than one kept, that of the lowest training loss; with
//                               --keep-best, that of the lowest test loss
//
// Files appear whole. The second and third kind share their bytes with the first by hard links if
// the file system has them. Whenever the process is killed, the newest checkpoint is complete, but
// it may have only the second or third name yet.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ebb/bytes.h"

namespace ebb::cli {

bool on_one_disk(const std::filesystem::path& a, const std::filesystem::path& b);
// An error if the file system of a folder has less free space than this.
void require_space(const std::filesystem::path& folder, Bytes needed);

class CheckpointFolder {
 public:
  // Which loss decides the best checkpoint.
  enum class Best : bool { of_training, of_test };
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep, Best best = Best::of_training)
      : folder_(std::move(folder)), keep_(keep), best_(best) {}

  const std::filesystem::path& path() const { return folder_; }
  std::filesystem::path newest() const { return folder_ / "checkpoint.safetensors"; }
  std::filesystem::path best() const { return folder_ / "best.safetensors"; }
  // Whether a checkpoint is there.
  bool holds_a_run() const;
  // The checkpoint of the latest step; the best one only if it is the only one.
  std::filesystem::path to_resume() const;
  std::optional<std::int64_t> latest_step() const;  // of that checkpoint
  // For an error about a damaged checkpoint: what to do to continue from the latest intact one.
  // Empty if the checkpoint to resume is intact, or if none is. Reads whole files.
  std::string way_around_damage() const;

  // Removes what killed runs left: half-written checkpoints, and links that never got their name.
  // The folder must not be in use by another run.
  void sweep() const;

  // Calls `write` for a new file and puts it in place as the newest checkpoint. `loss` decides
  // whether it is also the best, and must be among the notes that `write` stores, as "loss".
  using Write = std::function<void(const std::filesystem::path&)>;
  void keep(std::int64_t step, double loss, const Write& write);

  // Puts a checkpoint in place as the best, for Best::of_test.
  void keep_best(const Write& write) const { write(best()); }

  // Throws if the disk has no room for the checkpoints of `writes` occasions, each of this size,
  // and for a model beside them.
  void require_space(Bytes checkpoint, std::int64_t writes, Bytes model = {}) const;

 private:
  std::vector<std::filesystem::path> steps() const;  // oldest first
  std::filesystem::path of_step(std::int64_t step) const;
  void remove_old() const;

  std::filesystem::path folder_;
  std::int64_t keep_;
  Best best_;
};

}  // namespace ebb::cli
