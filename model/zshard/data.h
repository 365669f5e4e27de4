#pragma once

/// \file zshard/data.h
/// Samples, the same at any number of ranks and after a restart: zs::TokenDataset of text or token ids, with
/// zs::open_tokenizer; zs::TensorDataset of rows in safetensors files; zs::Sampler, the order alone, for readers of
/// your own. Each rank opens them and reads its part by itself. What is wrong with a file is a zs::Error that names it.

#include "model/data/file_format.h"
#include "model/data/text_documents.h"
#include "model/datasets/sampler.h"
#include "model/datasets/tensor_dataset.h"
#include "model/datasets/token_dataset.h"
#include "model/tokenizer/tokenizer.h"
