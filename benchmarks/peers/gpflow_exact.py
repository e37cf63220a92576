"""GPflow's exact evidence and its gradient, once for each line on standard input: prints the processor's seconds.

    TF_USE_LEGACY_KERAS=1 python gpflow_exact.py ROWS.npz

`ROWS.npz` has X [N, D] and y [N]. The kernel is Matérn 5/2 with a lengthscale a column, in float64.
"""

import sys
import time

import gpflow
import numpy as np
import tensorflow as tf

rows = np.load(sys.argv[1])
X, y = rows["X"], rows["y"][:, None]
kernel = gpflow.kernels.Matern52(variance=1.5, lengthscales=np.full(X.shape[1], 2.0))
model = gpflow.models.GPR((X, y), kernel, noise_variance=0.1)


@tf.function
def value_and_gradient():
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    return loss, tape.gradient(loss, model.trainable_variables)


for _ in sys.stdin:
    start = time.process_time()
    loss, slopes = value_and_gradient()
    loss.numpy(), [slope.numpy() for slope in slopes]
    print(time.process_time() - start, float(-loss), flush=True)
