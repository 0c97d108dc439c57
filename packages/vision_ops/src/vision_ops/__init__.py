"""torchvision's operators on every target: import this, or pass plugins=["vision_ops"] to ir.export.

Each gets a portable body in torch functions; nms, roi_align and deform_conv2d also a native form on ONNX
(NonMaxSuppression, RoiAlign, DeformConv). ONNX's MaxRoiPool rounds otherwise
than roi_pool, which goes by its body. batched_nms is a function over nms, which torchvision's models call while
they are exported. The eager target runs torchvision's own kernels.
"""

import torchvision  # noqa: F401  (defines the operators)

from vision_ops import boxes, deform, regions

boxes.stand_in()

__version__ = "1.0.0"

__all__ = ["boxes", "deform", "regions"]
