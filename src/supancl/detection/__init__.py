"""Object detection: Faster R-CNN from a pretrained ResNet encoder (the paper's VOC result)."""
