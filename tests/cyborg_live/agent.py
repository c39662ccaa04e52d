# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""Cyborg's agent, which looks for devices every few seconds.

Usage: python agent.py [ARGUMENT...], with the arguments of cyborg-agent

The period of Cyborg's agent is oslo.service's default of 60 seconds. Cyborg
has no option for it.
"""

from __future__ import annotations

from oslo_service import periodic_task

#: Seconds between two reports.
PERIOD = 3.0

if __name__ == '__main__':
    # Before the import of the agent, which reads it.
    periodic_task.DEFAULT_INTERVAL = PERIOD
    from cyborg.cmd import agent

    agent.main()
