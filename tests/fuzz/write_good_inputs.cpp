// write_good_inputs FOLDER: for each reader a folder of inputs it accepts.
#include <cstdio>

#include "fuzz/readers.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: write_good_inputs FOLDER\n", stderr), 2;
  namespace fs = std::filesystem;
  const fs::path folder = argv[1], work = folder / "work";
  fs::create_directories(work);
  for (const auto& [reader, inputs] : ebb::fuzz::good_inputs(work)) {
    fs::create_directories(folder / reader);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      ebb::fuzz::write_file(folder / reader, ("good" + std::to_string(i)).c_str(), inputs[i]);
  }
  fs::remove_all(work);
}
