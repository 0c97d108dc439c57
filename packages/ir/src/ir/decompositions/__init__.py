"""Mathematics that no runtime has natively, once for all targets: functions of torch, a family a file."""
