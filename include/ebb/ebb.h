// Everything a program that uses ebb needs.
#pragma once

#include "ebb/bytes.h"
#include "ebb/device.h"
#include "ebb/dtype.h"
#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/graph.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/plan.h"
#include "ebb/program.h"
#include "ebb/random.h"
#include "ebb/shape.h"
#include "ebb/tensor.h"
#include "ebb/threads.h"
#include "ebb/variable.h"
#include "ebb/version.h"
