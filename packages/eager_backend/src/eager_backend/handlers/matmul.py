"""Products of matrices, and linear algebra over them."""

from eager_backend.registry import rows
from ir.importer.torch_api import LINALG, NN, VF

rows(NN, "linear")
rows(
    VF,
    "addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul cross det dot einsum inner inverse kron logdet matmul "
    "matrix_exp matrix_power mm mv outer vdot",
)
rows(
    LINALG,
    "linalg_cross linalg_det linalg_inv linalg_matmul linalg_matrix_norm linalg_norm linalg_qr linalg_solve "
    "linalg_vecdot linalg_vector_norm linalg_cholesky linalg_svd linalg_eigh linalg_slogdet",
)
