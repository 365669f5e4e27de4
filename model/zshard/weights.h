#pragma once

/// \file zshard/weights.h
/// Models of Hugging Face folders (zs::load_pretrained). Tensors in safetensors files: weights, to begin with or to
/// hand on (collective; between steps; a file that does not fit is an error of every rank before anything is changed),
/// and files as such (zs::WeightFiles, zs::SafetensorsWriter), which one rank reads or writes by itself.

#include "model/families/pretrained.h"
#include "model/weights/safetensors.h"
#include "model/weights/weight_file.h"
#include "model/weights/weight_files.h"
