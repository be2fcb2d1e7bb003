// How long OpenMP's threads wait busily for the next kernel.
#pragma once

namespace ebb::cli {

// Starts the program once more with short waits, unless the environment already says how to wait.
// GCC's library waits for milliseconds by default: on a machine that others use too, a thread then
// burns the very time that the thread it waits for needs, and a step takes five times as long. The
// library reads its settings while it is loaded, so they must be there before main.
void restart_with_short_waits(char** argv);

}  // namespace ebb::cli
