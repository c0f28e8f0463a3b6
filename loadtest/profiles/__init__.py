"""Profiles: locustfiles that name users and a shape.

make load PROFILE=<name>, or locust -f loadtest/profiles/<name>.py
"""
