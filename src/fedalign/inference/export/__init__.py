"""How does a model leave the package? A folder with weights, labels and a README, and an ONNX graph."""
