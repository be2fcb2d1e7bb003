// Every verb of the command line, one line each, in the order the help shows them.
#pragma once

#define EBB_VERBS(X) \
  X(ablate)          \
  X(plan)            \
  X(fit)             \
  X(frontier)        \
  X(profile)         \
  X(train)           \
  X(launch)          \
  X(compare)         \
  X(eval)            \
  X(export)          \
  X(generate)        \
  X(prune)           \
  X(tokenize)        \
  X(probe)           \
  X(info)            \
  X(completion)      \
  X(man)
