#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>

namespace chassis {

// Adds `chassis ckpt import-zero`. What it returns gives the exit code if that is what was asked for.
std::function<std::optional<int>()> add_ckpt_import(CLI::App& ckpt);

}  // namespace chassis
