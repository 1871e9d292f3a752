"""What a CPU needs beside the model: products in few shapes."""
