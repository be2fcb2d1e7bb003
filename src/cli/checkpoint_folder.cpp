#include "cli/checkpoint_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "ebb/error.h"
#include "ebb/io/checkpoint.h"
#include "io/checkpoint_file.h"
#include "io/temporaries.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "step-", suffix = ".safetensors";

// The step in the name step-N.safetensors; no value for other names.
std::optional<std::int64_t> step_in(const std::string& name) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return {};
  const char *begin = name.data() + prefix.size(), *end = name.data() + name.size() - suffix.size();
  std::int64_t step = 0;
  const auto [at, error] = std::from_chars(begin, end, step);
  if (error != std::errc{} || at != end || *begin == '-') return {};
  return step;
}

// Where a link is made, which then replaces a file of that name.
fs::path link_beside(fs::path name) { return name += ".link"; }

// Makes a second name for a file, replacing a file that had that name. Returns false if the file
// system has no such links, or if something else has the name, such as a symbolic link, which is
// followed by writing to it.
bool link_in_place(const fs::path& file, const fs::path& name) {
  const fs::path beside = link_beside(name);
  std::error_code error;
  const fs::file_type there = fs::symlink_status(name, error).type();
  if (there != fs::file_type::not_found && there != fs::file_type::regular) return false;
  fs::remove(beside, error);
  fs::create_hard_link(file, beside, error);
  if (error) return false;
  fs::rename(beside, name, error);
  const bool done = !error;
  fs::remove(beside, error);  // still there if both were names of the same file
  return done;
}

// The loss that a checkpoint was kept with; infinity where there is none.
double loss_of(const fs::path& file) {
  try {
    const io::Notes notes = io::read_summary(file).notes;
    const auto found = notes.find("loss");
    if (found != notes.end()) return std::strtod(found->second.c_str(), nullptr);
  } catch (const FileError&) {  // the next one replaces it
  }
  return std::numeric_limits<double>::infinity();
}

// No value if the file system does not report it.
std::optional<Bytes> free_space(const fs::path& folder) {
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0) return {};
  return Bytes{static_cast<std::int64_t>(disk.f_bavail * disk.f_frsize)};
}

}  // namespace

bool on_one_disk(const fs::path& a, const fs::path& b) {
  struct stat of_a {
  }, of_b{};
  return stat(a.c_str(), &of_a) == 0 && stat(b.c_str(), &of_b) == 0 && of_a.st_dev == of_b.st_dev;
}

void require_space(const fs::path& folder, Bytes needed) {
  if (const auto free = free_space(folder); free && *free < needed)
    throw FileError(fmt::format("{}: {} are free, but the model needs {}", folder.string(),
                                to_string(*free), to_string(needed)));
}

bool CheckpointFolder::holds_a_run() const {
  std::error_code error;
  return fs::exists(newest(), error) || fs::is_regular_file(best(), error) || !steps().empty();
}

std::vector<fs::path> CheckpointFolder::steps() const {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error))
    if (const auto step = step_in(entry.path().filename().string());
        step && entry.is_regular_file(error))
      found.emplace_back(*step, entry.path());
  std::sort(found.begin(), found.end());
  std::vector<fs::path> files;
  for (const auto& [step, file] : found) files.push_back(file);
  return files;
}

fs::path CheckpointFolder::to_resume() const {
  const std::vector<fs::path> kept = steps();
  std::error_code error;
  if (!fs::exists(newest(), error))
    return !kept.empty() ? kept.back() : fs::is_regular_file(best(), error) ? best() : newest();
  if (kept.empty()) return newest();
  try {
    const auto step = step_in(kept.back().filename().string());
    return step > io::read_summary(newest()).step ? kept.back() : newest();
  } catch (const FileError&) {  // whoever reads it gets the error
    return newest();
  }
}

std::optional<std::int64_t> CheckpointFolder::latest_step() const {
  if (!holds_a_run()) return {};
  return io::read_summary(to_resume()).step;
}

std::string CheckpointFolder::way_around_damage() const {
  std::vector<fs::path> files = steps();
  std::reverse(files.begin(), files.end());
  files.insert(files.begin(), {to_resume(), newest()});
  files.push_back(best());
  std::vector<std::string> damaged;  // in the order of resuming
  for (const fs::path& file : files) {
    const std::string name = file.filename().string();
    std::error_code error;
    if (!fs::exists(file, error) || std::ranges::find(damaged, name) != damaged.end()) continue;
    try {
      io::CheckpointFile(file, {}).file().check_tensors();
    } catch (const FileError&) {
      damaged.push_back(name);
      continue;
    }
    if (damaged.empty()) return {};
    return fmt::format("{} is intact: to continue from it, move {} out of the folder", name,
                       fmt::join(damaged, " and "));
  }
  return {};
}

fs::path CheckpointFolder::of_step(std::int64_t step) const {
  return folder_ / fmt::format("{}{:08}{}", prefix, step, suffix);
}

void CheckpointFolder::sweep() const {
  io::sweep_temporaries(folder_, [&](const std::string& name) {
    return name == newest().filename() || name == best().filename() || step_in(name);
  });
  std::error_code error;
  for (const fs::path& link : {link_beside(newest()), link_beside(best())})
    if (fs::is_regular_file(fs::symlink_status(link, error))) fs::remove(link, error);
}

void CheckpointFolder::keep(std::int64_t step, double loss, const Write& write) {
  if (keep_ == 1) return write(newest());
  const fs::path file = of_step(step);
  write(file);
  if (!link_in_place(file, newest())) write(newest());
  const bool is_best = best_ == Best::of_training && std::isfinite(loss) && loss <= loss_of(best());
  if (is_best && !link_in_place(file, best())) write(best());
  remove_old();
}

void CheckpointFolder::remove_old() const {
  const std::vector<fs::path> files = steps();
  std::error_code error;  // a file that cannot be removed does no harm
  for (std::int64_t i = 0; i + keep_ < static_cast<std::int64_t>(files.size()); ++i)
    fs::remove(files[static_cast<std::size_t>(i)], error);
}

void CheckpointFolder::require_space(Bytes checkpoint, std::int64_t writes, Bytes model) const {
  const std::optional<Bytes> free = free_space(folder_);
  if (!free) return;
  // At most one more checkpoint exists than is kept, and the best one.
  const std::int64_t own = std::min(writes, keep_ + (keep_ > 1 ? 2 : 1)),
                     files = own + (best_ == Best::of_test ? 2 : 0);
  std::int64_t there = 0;
  std::error_code error;
  for (const fs::path& file : steps())
    there += static_cast<std::int64_t>(fs::file_size(file, error));
  if (there == 0 && fs::is_regular_file(newest(), error))
    there = static_cast<std::int64_t>(fs::file_size(newest(), error));
  const Bytes needed = model + Bytes{std::max(checkpoint.count, files * checkpoint.count - there)};
  if (*free < needed)
    throw FileError(fmt::format(
        "{}: {} are free, but checkpoints need {}: {} of {} at the fullest moment{}",
        folder_.string(), to_string(*free), to_string(needed), files, to_string(checkpoint),
        model > 0_B ? fmt::format(", and {} of the model of --save", to_string(model)) : ""));
}

}  // namespace ebb::cli
