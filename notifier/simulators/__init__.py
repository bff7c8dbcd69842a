"""The simulators: local servers that speak APNs and FCM, strict as the real ones, and log what arrives."""
