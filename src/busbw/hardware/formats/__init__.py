"""Files that describe hardware: one module a format, each with a function that returns (value, losses).

`topo_matrix` reads `nvidia-smi topo -m`, `nccl_topo_xml` and `nccl_graph_xml` NCCL's topology and graph files;
`nccl_node`, `hwloc_xml` and `matrix_node` make nodes, `nccl_node` also writes one; `ibnetdiscover` and `slurm_topology`
make fabrics; `machine` tells the files apart. Imports only `busbw.errors`, the catalogue, blueprints and fabrics.
"""

from busbw.hardware.formats.nccl_graph_xml import NcclGraphs, read_nccl_graphs, write_nccl_graphs
from busbw.hardware.formats.nccl_node import node_from_nccl_topology, node_to_nccl_topology
from busbw.hardware.formats.nccl_topo_xml import NcclTopology, read_nccl_topology, write_nccl_topology
from busbw.hardware.formats.topo_matrix import TopologyMatrix, read_topology_matrix

__all__ = [
    "NcclGraphs",
    "NcclTopology",
    "TopologyMatrix",
    "node_from_nccl_topology",
    "node_to_nccl_topology",
    "read_nccl_graphs",
    "read_nccl_topology",
    "read_topology_matrix",
    "write_nccl_graphs",
    "write_nccl_topology",
]
