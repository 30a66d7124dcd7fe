"""How many GPUs and replicas a load needs: a queueing model fed with measured costs of the stages."""
