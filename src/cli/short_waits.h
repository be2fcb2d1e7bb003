// How long OpenMP's threads spin while they wait for the next kernel.
#pragma once

namespace ebb::cli {

// Restarts the program with short spinning, unless the environment already sets how to wait. GCC's
// OpenMP library spins for milliseconds by default. On a machine that is also used by others, a
// spinning thread then takes the time that the thread it waits for needs, and a step takes five
// times as long. The library reads its settings when it is loaded, so they must be set before main.
void restart_with_short_waits(char** argv);

}  // namespace ebb::cli
