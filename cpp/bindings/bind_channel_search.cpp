// The channel search for Python: a node as columns in, channels out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "busbw/nccl/channel_search.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace nccl = busbw::nccl;

namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::vector<T> values(const Column<T>& column) {
  return {column.data(), column.data() + column.shape(0)};
}

template <class T>
void same_length(const Column<T>& column, std::size_t length, const char* what) {
  if (column.shape(0) != length) throw std::invalid_argument(what);
}

/// path_links: (steps x 4) link, reverse link, divisor of the reverse share, overhead; path_begin: where each path's steps begin, and the end.
std::vector<nccl::SearchPath> paths(const Column<std::int32_t>& type, const Column<float>& rate, const Column<std::int32_t>& begin,
                                    const Column<std::int32_t>& links) {
  same_length(rate, type.shape(0), "path columns differ in length");
  same_length(begin, type.shape(0) + 1, "path_begin must have one more than the paths");
  std::vector<nccl::SearchPath> out(type.shape(0));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto first = begin.data()[i];
    const auto last = begin.data()[i + 1];
    if (first < 0 || last < first || static_cast<std::size_t>(last) * 4 > links.shape(0))
      throw std::invalid_argument("path_begin points outside path_links");
    out[i].type = type.data()[i];
    out[i].rate = rate.data()[i];
    for (auto k = first; k < last; ++k) {
      const std::int32_t* step = links.data() + static_cast<std::size_t>(k) * 4;
      out[i].links.push_back({step[0], step[1], step[2], step[3] != 0});
    }
  }
  return out;
}

/// net_numbers: (nets x 6) asic, port, rail, plane, paired GPU, whether it reaches GPUs.
std::vector<nccl::SearchNet> nets(const Column<float>& rate, const Column<float>& latency_us, const Column<std::int32_t>& numbers,
                                  std::vector<std::vector<std::int32_t>> local_gpus) {
  const std::size_t count = rate.shape(0);
  same_length(latency_us, count, "net columns differ in length");
  same_length(numbers, count * 6, "net_numbers must have six numbers a net");
  if (local_gpus.size() != count) throw std::invalid_argument("local_gpus must have a list a net");
  std::vector<nccl::SearchNet> out;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t* n = numbers.data() + i * 6;
    out.push_back({rate.data()[i], latency_us.data()[i], n[0], n[1], n[2], n[3], n[4], std::move(local_gpus[i]), n[5] != 0});
  }
  return out;
}

std::vector<std::array<std::int32_t, 2>> pairs(const Column<std::int32_t>& numbers) {
  if (numbers.shape(0) % 2 != 0) throw std::invalid_argument("gpu_pci must have two numbers a GPU");
  std::vector<std::array<std::int32_t, 2>> out;
  for (std::size_t i = 0; i < numbers.shape(0); i += 2) out.push_back({numbers.data()[i], numbers.data()[i + 1]});
  return out;
}

}  // namespace

NB_MODULE(_search, m) {
  m.doc() = "NCCL's channel search: one try at a time.";

  nb::class_<nccl::Wish>(m, "Wish", "What a try looks for; rates of one channel, 1e9 bytes a second.")
      .def("__init__",
           [](nccl::Wish* wish, std::int32_t pattern, bool several_nodes, std::int32_t least_channels, std::int32_t most_channels) {
             if (pattern < 1 || pattern > 5) throw std::invalid_argument("patterns are 1 to 5");
             new (wish) nccl::Wish{static_cast<nccl::Pattern>(pattern), several_nodes, least_channels, most_channels, 0, false, 0, 0, 0, 0, 0};
           },
           "pattern"_a, "several_nodes"_a, "least_channels"_a, "most_channels"_a)
      .def("copy", [](const nccl::Wish& wish) { return wish; }, "The same, on its own.")
      .def_prop_rw(
          "pattern", [](const nccl::Wish& wish) { return static_cast<std::int32_t>(wish.pattern); },
          [](nccl::Wish& wish, std::int32_t pattern) {
            if (pattern < 1 || pattern > 5) throw std::invalid_argument("patterns are 1 to 5");
            wish.pattern = static_cast<nccl::Pattern>(pattern);
          })
      .def_rw("least_channels", &nccl::Wish::least_channels)
      .def_rw("most_channels", &nccl::Wish::most_channels)
      .def_rw("cross_nic", &nccl::Wish::cross_nic)
      .def_rw("same_channels", &nccl::Wish::same_channels)
      .def_rw("intra", &nccl::Wish::intra)
      .def_rw("inter", &nccl::Wish::inter)
      .def_rw("type_intra", &nccl::Wish::type_intra)
      .def_rw("type_inter", &nccl::Wish::type_inter)
      .def_rw("hops", &nccl::Wish::hops);

  nb::class_<nccl::Channels>(m, "Channels", "Channels found, none to begin with.")
      .def("__init__", [](nccl::Channels* channels, const nccl::Wish& wish) { new (channels) nccl::Channels{wish, 0, 0, {}, {}}; }, "wish"_a)
      .def_rw("wish", &nccl::Channels::wish)
      .def_rw("channels", &nccl::Channels::channels)
      .def_ro("latency_us", &nccl::Channels::latency_us)
      .def_rw("gpus", &nccl::Channels::gpus, "(channels x GPUs), and what a try wrote beyond.")
      .def_rw("nets", &nccl::Channels::nets, "(channels x 2), and what a try wrote beyond.");

  nb::class_<nccl::ChannelSearch>(m, "ChannelSearch", "The node that channels are laid into; its links keep their rounding from try to try.")
      .def("__init__",
           [](nccl::ChannelSearch* search, const Column<float>& link_gb_per_s, const Column<std::int32_t>& path_type,
              const Column<float>& path_gb_per_s, const Column<std::int32_t>& path_begin, const Column<std::int32_t>& path_links,
              const Column<float>& net_gb_per_s, const Column<float>& net_latency_us, const Column<std::int32_t>& net_numbers,
              std::vector<std::vector<std::int32_t>> local_gpus, const Column<std::int32_t>& gpu_pci, bool has_nvswitch) {
             new (search) nccl::ChannelSearch(nccl::SearchNode{
                 values(link_gb_per_s), paths(path_type, path_gb_per_s, path_begin, path_links),
                 nets(net_gb_per_s, net_latency_us, net_numbers, std::move(local_gpus)), pairs(gpu_pci), has_nvswitch});
           },
           "link_gb_per_s"_a, "path_type"_a, "path_gb_per_s"_a, "path_begin"_a, "path_links"_a, "net_gb_per_s"_a, "net_latency_us"_a,
           "net_numbers"_a, "local_gpus"_a, "gpu_pci"_a, "has_nvswitch"_a,
           "Columns as float32 and int32. path_links: (steps x 4), flat; net_numbers: (nets x 6), flat; gpu_pci: (GPUs x 2), flat.")
      .def("attempt",
           [](nccl::ChannelSearch& search, nccl::Wish& wish, nccl::Channels& best, std::vector<std::int32_t> nets,
              std::vector<std::vector<std::int32_t>> nets_of_gpu, std::int32_t budget, std::int32_t budget_in_order) {
             for (const auto net : nets)
               if (net < 0 || net >= search.nets()) throw std::invalid_argument("a net does not exist");
             for (const auto& some : nets_of_gpu)
               for (const auto net : some)
                 if (net < 0 || net >= search.nets()) throw std::invalid_argument("a net does not exist");
             const nccl::NetOrder order{std::move(nets), std::move(nets_of_gpu)};
             nb::gil_scoped_release free;
             return search.attempt(wish, best, order, budget, budget_in_order);
           },
           "wish"_a, "best"_a, "nets"_a, "nets_of_gpu"_a, "budget"_a, "budget_in_order"_a,
           "Looks for channels better than best and puts them there. Returns the steps left; -1 if nothing can be better.");
}
