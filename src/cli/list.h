// Every verb of the command line, one line each, in the order the help shows them.
#pragma once

#define EBB_VERBS(X) \
  X(ablate)          \
  X(train)           \
  X(eval)            \
  X(info)
