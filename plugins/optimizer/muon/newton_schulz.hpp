// The quintic Newton-Schulz iteration of Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural
// networks"): drives the singular values of a matrix towards 1.
#pragma once

#include <cstdint>

#include "chassis/host.hpp"

namespace muon {

// The precision of the matrices between products. Products are always summed in fp32.
enum class Precision { kFp32, kBf16 };

// Elements of scratch for a matrix of this size, which is aligned to 8 bytes.
int64_t scratch_elements(int64_t rows, int64_t columns);

// Replaces x, row-major, by x / ‖x‖ after `steps` iterations x ← a·x + (b·xxᵀ + c·(xxᵀ)²)·x. In fp32 the bits are the
// same with any number of threads; in bf16, which torch.optim.Muon uses, the host multiplies where that is fast.
void orthogonalize(const chassis::Host& host, float* x, int64_t rows, int64_t columns, int steps, Precision precision,
                   float* scratch);

}  // namespace muon
