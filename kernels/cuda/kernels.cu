// Every kernel, as one image.
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/attention_backward.cu"
#include "kernels/cuda/attention_general.cu"
#include "kernels/cuda/elementwise.cu"
#include "kernels/cuda/layer_norm.cu"
#include "kernels/cuda/loss.cu"
#include "kernels/cuda/optimizer.cu"
#include "kernels/cuda/rows.cu"
