// The arguments of resolve() and helpers for its answers, shared by the files of ParallelStack.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/parallel/parallel_stack.hpp"

namespace chassis {

// The arguments for one rank's stages.
struct ParallelStack::Problem {
  chassis_parallel_problem_t raw{};
  std::vector<chassis_mesh_axis_t> axes;
  std::vector<uint32_t> ids;        // by parameter: its index in the table
  std::vector<size_t> whole_units;  // by unit: its index in the program
  std::deque<chassis_parallel_parameter_t> parameters;
  std::vector<const chassis_parallel_parameter_t*> pointers;
  std::deque<std::vector<uint32_t>> units;
  std::vector<std::string> unit_texts;
  std::vector<chassis_str_t> unit_names;
  std::vector<chassis_chunk_t> chunks;
};

inline bool contains(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

inline void expect_axis(const MeshShape& mesh, const std::string& axis, const char* verb) {
  if (mesh.find(axis) < 0)
    throw plugin_error("there is no axis '" + axis + "' to " + verb + "; the mesh is " + mesh.text());
}

}  // namespace chassis
