"""Exported models over the rows of engines that exist: thin adapters between `ir.runner` and Ray Data, Spark and Dask.

    from batch_inference import ray_data
    ray_data.map_batches(dataset, ir.runner("model.onnx"), workers=4).write_parquet("results")

Each engine is imported by its own module alone.
"""
