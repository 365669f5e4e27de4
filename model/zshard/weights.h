#pragma once

/// \file zshard/weights.h
/// Weights in safetensors files, to begin with or to hand on. Collective; between steps. A file that does not fit is an
/// error of every rank before anything is changed.

#include "model/weight_file.h"
