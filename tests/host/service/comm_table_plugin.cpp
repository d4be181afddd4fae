// The plugin's side of comm_table_test.cpp: calls chassis.comm/1 through the SDK, without the host's headers.
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "chassis/comm.hpp"

namespace comm_table_plugin {

using namespace chassis;

// Returns what went wrong; empty if nothing did.
std::string use(const chassis_host_t* table, uint32_t num_ranks) {
  const Host host(table);
  const CommGroup all(host, {}), along(host, {"dp"});
  if (all.size() != num_ranks || along.size() != num_ranks) return "a group of another size";
  const uint32_t rank = all.rank();

  std::array<float, 3> part;
  part.fill(static_cast<float>(rank + 1));
  std::vector<float> whole(3 * num_ranks), sum(3);
  const std::array calls = {all_gather(CHASSIS_DTYPE_F32, part.data(), whole.data(), 3, "part"),
                            all_reduce(CHASSIS_DTYPE_F32, part.data(), sum.data(), 3, "sum", CHASSIS_REDUCE_AVG)};
  CommWork work = all.start(calls);
  work.wait();
  work.wait();  // the second call does nothing
  if (!work.done()) return "a work that is not done";
  for (uint32_t r = 0; r < num_ranks; ++r) {
    if (whole[3 * r + 1] != static_cast<float>(r + 1)) return "a wrong part of rank " + std::to_string(r);
  }
  if (sum[2] != static_cast<float>(num_ranks + 1) / 2) return "a wrong average";

  std::vector<int64_t> sent(num_ranks, rank), received(num_ranks);
  all.run(all_to_all(CHASSIS_DTYPE_I64, sent.data(), received.data(), 1, "ids"));
  for (uint32_t r = 0; r < num_ranks; ++r) {
    if (received[r] != r) return "a wrong id";
  }
  int32_t root = rank == 1 ? 42 : 0;
  all.run(broadcast(CHASSIS_DTYPE_I32, &root, &root, 1, "root", 1));
  if (root != 42) return "a wrong broadcast";
  std::vector<float> pieces(num_ranks, 2.0f);
  float piece = 0;
  all.run(reduce_scatter(CHASSIS_DTYPE_F32, pieces.data(), &piece, 1, "piece", CHASSIS_REDUCE_MAX));
  if (piece != 2.0f) return "a wrong piece";
  int64_t got = -1;
  const int64_t mine = rank;
  const std::array ring = {
      send_to(CHASSIS_DTYPE_I64, &mine, 1, "ring", static_cast<int32_t>((rank + 1) % num_ranks)),
      recv_from(CHASSIS_DTYPE_I64, &got, 1, "ring", static_cast<int32_t>((rank + num_ranks - 1) % num_ranks))};
  all.start(ring).wait();
  if (got != (rank + num_ranks - 1) % num_ranks) return "a wrong neighbour";
  { const CommWork dropped = all.start(barrier("dropped")); }  // its destructor waits
  all.run(barrier("end"));
  return "";
}

// The code and the text of the status that `part` ends with.
template <typename Part>
std::string failure_of(Part&& part) {
  try {
    part();
    return "no failure";
  } catch (const Failure& failure) {
    return std::to_string(failure.code()) + " " + failure.what();
  }
}

std::string unknown_axis(const chassis_host_t* table) {
  const Host host(table);
  return failure_of([&] { CommGroup(host, {"tp"}); });
}
std::string malformed_call(const chassis_host_t* table) {
  const Host host(table);
  return failure_of([&] { CommGroup(host, {}).run(all_gather(0, nullptr, nullptr, 1, "nothing")); });
}
std::string agree(const chassis_host_t* table, uint32_t failing) {
  const Host host(table);
  const uint32_t rank = CommGroup(host, {}).rank();
  return failure_of([&] {
    together(host, "preparing", [&] {
      if (rank == failing) throw Failure(CHASSIS_RESOURCE_EXHAUSTED, "no room on rank ", rank);
    });
  });
}
std::string without_service(const chassis_host_t* table) {
  const Host host(table);
  return failure_of([&] { CommGroup(host, {}); });
}

}  // namespace comm_table_plugin
